"""Two tokenizations over one another, chunk by chunk: for a terminal and as a picture."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from mrl.alignment import Chunk, align
from mrl.residual import Residual

# Okabe and Ito's colours, told apart by colour-blind readers; neighbours differ in lightness too
CHUNK_COLORS = ("#56B4E9", "#E69F00")
PICTURE_WIDTH = 80  # in characters
TOKEN_BAR = "\u2502"  # between the tokens of a chunk


def visible(piece: bytes) -> str:
    """A token's bytes as text for people: spaces as dots, what cannot be shown as escapes."""
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in piece)
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown.replace(" ", "·") or "∅"


def chunk_rows(
    source: Sequence[bytes], receiver: Sequence[bytes], chunks: Sequence[Chunk]
) -> list[tuple[str, str]]:
    """Of each chunk: its source tokens and its receiver tokens, with a bar between tokens."""
    return [
        (
            TOKEN_BAR.join(visible(piece) for piece in source[slice(*chunk.source)]),
            TOKEN_BAR.join(visible(piece) for piece in receiver[slice(*chunk.receiver)]),
        )
        for chunk in chunks
    ]


def render_alignment(
    names: tuple[str, str],
    source: Sequence[bytes],
    receiver: Sequence[bytes],
    residual: Residual,
    width: int,
) -> RenderableType:
    """Source tokens above receiver tokens; a colour a chunk; chunks that are not 1:1 reversed."""
    chunks = align(source, receiver)
    label = max(map(len, names)) + 2
    lines: list[Text] = []
    above = below = None
    used = width
    for number, (chunk, rows) in enumerate(
        zip(chunks, chunk_rows(source, receiver, chunks), strict=True)
    ):
        size = max(map(cell_len, rows))
        if used + size + 1 > width:
            above, below = Text(names[0].ljust(label)), Text(names[1].ljust(label))
            lines += [above, below, Text()]
            used = label
        style = CHUNK_COLORS[number % 2] + ("" if chunk.one_to_one else " reverse")
        for line, row in zip((above, below), rows, strict=True):
            line.append(row + " " * (size - cell_len(row)), style=style)
            line.append(" ")
        used += size + 1
    return Group(*lines, *(Text(line) for line in residual_lines(residual, chunks)))


def residual_lines(residual: Residual, chunks: Sequence[Chunk]) -> list[str]:
    """The figures of a residual in words."""
    one_to_one = sum(chunk.one_to_one for chunk in chunks)
    return [
        f"{residual.source_tokens} source tokens, {residual.receiver_tokens} receiver tokens "
        f"(length ratio {residual.length_ratio:.2f}), {residual.bytes} bytes",
        f"{len(chunks)} chunks, {one_to_one} of them 1:1 "
        f"({residual.share_one_to_one:.0%} of the bytes); the others are shown reversed",
    ]


def draw_alignment(
    names: tuple[str, str],
    source: Sequence[bytes],
    receiver: Sequence[bytes],
    residual: Residual,
    path: Path,
) -> None:
    """The terminal view as an SVG, as wide in every terminal; OSError if it cannot be written."""
    terminal = Console(file=io.StringIO(), record=True, width=PICTURE_WIDTH)
    terminal.print(render_alignment(names, source, receiver, residual, PICTURE_WIDTH))
    svg = terminal.export_svg(title=" and ".join(names))
    # without rich's fonts from the net: a picture that is opened should not call anybody
    path.write_text(re.sub(r"@font-face {.*?}", "", svg, flags=re.DOTALL), encoding="utf-8")
