"""Reference solution; `assignment start align` has the contract."""

ASSIGNMENT = "align"

Span = tuple[int, int]


def align(source: list[bytes], receiver: list[bytes]) -> list[tuple[Span, Span]]:
    """Cut two tokenizations of one text at every byte boundary that they share."""
    if b"".join(source) != b"".join(receiver):
        raise ValueError("not the same bytes")
    ends = []
    for side in (source, receiver):
        places, byte = {}, 0
        for number, piece in enumerate(side, start=1):
            byte += len(piece)
            places[byte] = number
        ends.append(places)
    chunks, i, k = [], 0, 0
    for byte, j in ends[0].items():
        if byte in ends[1]:
            n = ends[1][byte]
            chunks.append(((i, j), (k, n)))
            i, k = j, n
    return chunks
