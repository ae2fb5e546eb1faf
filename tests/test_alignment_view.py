import io

from rich.cells import cell_len
from rich.console import Console

from mrl.lab.alignment_view import render_alignment, visible

SOURCE = [b"4", b"7", b"-", b"3", b" ", b"\xf0\x9f", b"\x98\x80", b"\x1b", b"$x$"]
RECEIVER = [b"4", b"7", b"-3", b" \xf0\x9f\x98\x80", b"\x1b$x$"]


def test_tokens_are_shown_without_raw_control_characters():
    shown = [visible(piece) for piece in (b" a", b"\n", b"\x1b[31m", b"\xf0\x9f", b"", b"\xc2\xa0")]
    assert shown == ["·a", "\\n", "\\x1b[31m", "<F0><9F>", "∅", "\\xa0"]


def test_rows_stand_over_one_another_chunk_by_chunk():
    console = Console(file=io.StringIO(), width=80)
    console.print(render_alignment(("one", "two"), SOURCE, RECEIVER, 80))
    above, below = console.file.getvalue().splitlines()[:2]
    assert above.split() == ["one", "4", "7", "-│3", "·│<F0><9F>│<98><80>", "\\x1b│$x$"]
    assert below.split() == ["two", "4", "7", "-3", "·😀", "\\x1b$x$"]
    assert cell_len(above[: above.index("\\x1b")]) == cell_len(below[: below.index("\\x1b")])


def test_the_terminal_view_wraps_and_gives_the_figures():
    console = Console(file=io.StringIO(), width=40)
    console.print(render_alignment(("one", "two"), SOURCE, RECEIVER, 40))
    text = console.file.getvalue()
    assert "9 source tokens, 5 receiver tokens" in text.replace("\n", " ")
    assert "\x1b" not in text
    assert text.count("one") >= 2  # more than one line of chunks
    assert all(len(line) <= 40 for line in text.splitlines())
