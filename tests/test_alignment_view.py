import io

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from mrl.lab.alignment_view import render_alignment, visible

SOURCE = [b"4", b"7", b"-", b"3", b" ", b"\xf0\x9f", b"\x98\x80", b"\x1b", b"$x$"]
RECEIVER = [b"4", b"7", b"-3", b" \xf0\x9f\x98\x80", b"\x1b$x$"]


def test_tokens_are_shown_without_raw_control_characters():
    shown = [visible(piece) for piece in (b" a", b"\n", b"\x1b[31m", b"\xf0\x9f", b"", b"\xc2\xa0")]
    assert shown == ["·a", "\\n", "\\x1b[31m", "<F0><9F>", "∅", "\\xa0"]


def test_a_chunk_is_a_row_reversed_if_it_is_not_one_to_one_and_the_figures_follow():
    console = Console(file=io.StringIO(), width=40, force_terminal=True)
    console.print(render_alignment(("one[/b]", "two"), SOURCE, RECEIVER))
    drawn = console.file.getvalue()
    assert "\x1b$" not in drawn
    plain = Text.from_ansi(drawn).plain
    head, *rows = plain.splitlines()
    assert head.split() == ["one[/b]", "two"]
    chunks = ["4 4", "7 7", "-│3 -3", "·│<F0><9F>│<98><80> ·😀", "\\x1b│$x$ \\x1b$x$"]
    assert [" ".join(row.split()) for row in rows[:5]] == chunks
    assert [line.startswith("\x1b[7m") for line in drawn.splitlines()[1:6]] == [
        False, False, True, True, True
    ]  # fmt: skip
    assert "9 source tokens, 5 receiver tokens" in plain.replace("\n", " ")
    assert all(cell_len(line.rstrip()) <= 40 for line in plain.splitlines())
