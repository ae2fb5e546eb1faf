"""Two tokenizations over one another, chunk by chunk: for a terminal and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from mrl.alignment import Chunk, align
from mrl.residual import Residual

# Okabe and Ito's colours, told apart by colour-blind readers; neighbours differ in lightness too
CHUNK_COLORS = ("#56B4E9", "#E69F00")
CHARACTERS_A_LINE = 64  # of a picture
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
    """The same as a PNG: a box a token, a colour a chunk, a thick frame where it is not 1:1.

    Raises OSError if the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chunks = align(source, receiver)
    lines = _lay_out(chunk_rows(source, receiver, chunks))
    margin = max(map(len, names)) + 2
    width = margin + CHARACTERS_A_LINE + 1
    figure = Figure(figsize=(0.13 * width, 1.05 * len(lines) + 0.8), dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-margin, CHARACTERS_A_LINE + 1)
    axes.set_ylim(-3.0 * len(lines) - 1.2, 0.6)
    axes.axis("off")
    for line, placed in enumerate(lines):
        for side, name in enumerate(names):
            y = -3.0 * line - 1.1 * side - 1.0
            axes.text(-margin + 0.5, y + 0.5, name, va="center", fontsize=9)
            for number, left, size, rows in placed:
                tokens = rows[side].split(TOKEN_BAR)
                frame = 0.5 if chunks[number].one_to_one else 2.0
                _draw_tokens(axes, tokens, left, y, size, CHUNK_COLORS[number % 2], frame)
    legend = (
        f"{len(chunks)} chunks; {residual.share_one_to_one:.0%} of the bytes in 1:1 chunks "
        f"(thin frames); {residual.source_tokens} against {residual.receiver_tokens} tokens"
    )
    axes.text(-margin + 0.5, -3.0 * len(lines) - 0.5, legend, fontsize=9, va="center")
    figure.savefig(path)


def _lay_out(rows: list[tuple[str, str]]) -> list[list[tuple[int, int, int, tuple[str, str]]]]:
    """Break chunks into lines: (number, column, width in characters, rows) of each."""
    lines: list[list[tuple[int, int, int, tuple[str, str]]]] = [[]]
    column = 0
    for number, pair in enumerate(rows):
        size = max(map(len, pair)) + 1
        if column and column + size > CHARACTERS_A_LINE:
            lines.append([])
            column = 0
        lines[-1].append((number, column, size, pair))
        column += size
    return lines


def _draw_tokens(
    axes: Any, tokens: list[str], left: float, y: float, size: int, color: str, frame: float
) -> None:
    """One side of a chunk: boxes as wide as their text, together as wide as the chunk."""
    from matplotlib.patches import Rectangle

    total = sum(len(token) + 1 for token in tokens)
    for token in tokens:
        width = size * (len(token) + 1) / total
        axes.add_patch(
            Rectangle(
                (left + 0.06, y), width - 0.12, 1.0,
                facecolor=color, edgecolor="black", linewidth=frame,
            )
        )  # fmt: skip
        axes.text(
            left + width / 2, y + 0.5, token.replace("$", r"\$"),
            ha="center", va="center", fontsize=9, family="DejaVu Sans Mono",
        )  # fmt: skip
        left += width
