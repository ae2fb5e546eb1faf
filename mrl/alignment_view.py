"""Two tokenizations over one another, chunk by chunk: for a terminal and as a picture."""

from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from mrl.alignment import Chunk, Residual, align

# Okabe and Ito's colours, told apart by colour-blind readers; neighbours differ in lightness too
CHUNK_COLORS = ("#56B4E9", "#E69F00")


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
            "|".join(visible(piece) for piece in source[slice(*chunk.source)]),
            "|".join(visible(piece) for piece in receiver[slice(*chunk.receiver)]),
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
    characters_a_row: int = 64,
) -> None:
    """The same as a PNG: one box a token, one colour a chunk, a thick frame where it is not 1:1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    chunks = align(source, receiver)
    rows: list[list[tuple[int, Chunk, int, int]]] = [[]]  # number, chunk, column, width
    column = 0
    for number, chunk in enumerate(chunks):
        texts = [
            [visible(piece) for piece in pieces[slice(*span)]]
            for pieces, span in ((source, chunk.source), (receiver, chunk.receiver))
        ]
        size = max(sum(len(text) + 1 for text in side) for side in texts)
        if column and column + size > characters_a_row:
            rows.append([])
            column = 0
        rows[-1].append((number, chunk, column, size))
        column += size

    figure = Figure(figsize=(0.13 * (characters_a_row + 16), 1.05 * len(rows) + 0.8), dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-16, characters_a_row + 1)
    axes.set_ylim(-3.0 * len(rows) - 1.2, 0.6)
    axes.axis("off")
    for line, row in enumerate(rows):
        for side, name in enumerate(names):
            axes.text(-15.5, -3.0 * line - 1.1 * side - 0.5, name, va="center", fontsize=9)
        for number, chunk, left, size in row:
            for side, (pieces, span) in enumerate(
                ((source, chunk.source), (receiver, chunk.receiver))
            ):
                tokens = [visible(piece) for piece in pieces[slice(*span)]]
                total = sum(len(token) + 1 for token in tokens) or 1
                x = float(left)
                for token in tokens:
                    wide = size * (len(token) + 1) / total
                    y = -3.0 * line - 1.1 * side - 1.0
                    box = Rectangle(
                        (x + 0.06, y),
                        wide - 0.12,
                        1.0,
                        facecolor=CHUNK_COLORS[number % 2],
                        edgecolor="black",
                        linewidth=0.5 if chunk.one_to_one else 2.0,
                    )
                    axes.add_patch(box)
                    shown = token.replace("$", r"\$")
                    axes.text(
                        x + wide / 2, y + 0.5, shown, ha="center", va="center", fontsize=9,
                        family="DejaVu Sans Mono",
                    )  # fmt: skip
                    x += wide
    axes.text(
        -15.5,
        -3.0 * len(rows) - 0.5,
        f"{len(chunks)} chunks; {residual.share_one_to_one:.0%} of the bytes in 1:1 chunks "
        f"(thin frames); {residual.source_tokens} against {residual.receiver_tokens} tokens",
        fontsize=9,
        va="center",
    )
    figure.savefig(path)
