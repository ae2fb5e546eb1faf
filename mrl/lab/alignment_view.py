"""Two tokenizations over one another, chunk by chunk, for a terminal."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from mrl.alignment import align
from mrl.residual import measure
from mrl.runtime.view import printable

# Okabe and Ito's colours, also for colour-blind readers; neighbours differ in lightness, too
CHUNK_COLORS = ("#56B4E9", "#E69F00")
TOKEN_BAR = "\u2502"  # between the tokens of a chunk


def visible(piece: bytes) -> str:
    """A token's bytes as text for people: spaces as dots, what cannot be shown as escapes."""
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in piece)
    return printable(text, keep="").replace(" ", "·") or "∅"


def render_alignment(
    names: tuple[str, str], source: Sequence[bytes], receiver: Sequence[bytes], width: int
) -> RenderableType:
    """Source tokens above receiver tokens, a colour per chunk; chunks that are not 1:1 reversed."""
    chunks, residual = align(source, receiver), measure(source, receiver)
    label = max(map(len, names)) + 2

    lines: list[Text] = []
    pair: list[Text] = []  # the two lines that are being written
    used = width
    for number, chunk in enumerate(chunks):
        sides = source[slice(*chunk.source)], receiver[slice(*chunk.receiver)]
        rows = [TOKEN_BAR.join(map(visible, tokens)) for tokens in sides]
        size = max(map(cell_len, rows))

        if used + size + 1 > width:
            pair = [Text(name.ljust(label)) for name in names]
            lines += [*pair, Text()]
            used = label

        style = CHUNK_COLORS[number % 2]
        if not chunk.one_to_one:
            style += " reverse"
        for line, row in zip(pair, rows, strict=True):
            line.append(row + " " * (size - cell_len(row)), style=style)
            line.append(" ")
        used += size + 1

    length_ratio = len(receiver) / max(len(source), 1)
    one_to_one = sum(chunk.one_to_one for chunk in chunks)
    share = residual["bytes_one_to_one"] / max(residual["bytes"], 1)
    figures = (
        f"{len(source)} source tokens, {len(receiver)} receiver tokens "
        f"(length ratio {length_ratio:.2f}), {residual['bytes']} bytes",
        f"{len(chunks)} chunks, {one_to_one} of them 1:1 "
        f"({share:.0%} of the bytes); the others are shown reversed",
    )
    return Group(*lines, *map(Text, figures))
