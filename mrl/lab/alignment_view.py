"""Shows two tokenizations side by side in a terminal, chunk by chunk."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mrl.alignment import align, measure
from mrl.run.view import cell, printable

TOKEN_BAR = "\u2502"  # between the tokens of a chunk


def visible(piece: bytes) -> str:
    """A token's bytes as readable text: spaces become dots, unprintable bytes become escapes."""
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in piece)
    return printable(text, keep="").replace(" ", "·") or "∅"


def render_alignment(
    names: tuple[str, str], source: Sequence[bytes], receiver: Sequence[bytes]
) -> RenderableType:
    """A table with one row per chunk; chunks that are not 1:1 have reversed colors."""
    chunks, residual = align(source, receiver), measure(source, receiver)
    table = Table(box=None)
    for name in names:
        table.add_column(cell(name))

    for chunk in chunks:
        sides = source[slice(*chunk.source)], receiver[slice(*chunk.receiver)]
        cells = [Text(TOKEN_BAR.join(map(visible, tokens))) for tokens in sides]
        table.add_row(*cells, style="" if chunk.one_to_one else "reverse")

    length_ratio = len(receiver) / max(len(source), 1)
    one_to_one = sum(chunk.one_to_one for chunk in chunks)
    share = residual["bytes_one_to_one"] / max(residual["bytes"], 1)
    figures = (
        f"{len(source)} source tokens, {len(receiver)} receiver tokens "
        f"(length ratio {length_ratio:.2f}), {residual['bytes']} bytes",
        f"{len(chunks)} chunks, {one_to_one} of them 1:1 "
        f"({share:.0%} of the bytes); the others are shown reversed",
    )
    return Group(table, *map(Text, figures))
