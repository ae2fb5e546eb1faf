"""What alignment cost: figures of one record, which add up to those of a run.

The paper (arXiv 2605.07244) asks to measure what is lost between tokenizers, so that it can be
budgeted for. Which figures measure it is our reading; the spread of log-probs within a chunk and
bits per byte are not among them.
"""

from collections import Counter
from collections.abc import Sequence

from mrl.alignment import align

# What alignment lost, as sums: records, bytes, source_tokens, receiver_tokens; bytes_one_to_one: in
# chunks of one source and one receiver token; sampled_otherwise: records whose ids are not the
# source tokenizer's own for the text. `total.update(other)` *adds*, as a Counter's update does.
Residual = Counter[str]


def measure(
    source_tokens: Sequence[bytes], receiver_tokens: Sequence[bytes], canonical: bool = True
) -> Residual:
    """The residual of one record, from both tokenizations of its text."""
    # the part where a token of one side is a token of the other, so that nothing is spread
    bytes_one_to_one = 0
    for chunk in align(source_tokens, receiver_tokens):
        if chunk.one_to_one:
            start, stop = chunk.bytes
            bytes_one_to_one += stop - start

    return Residual(
        records=1,
        bytes=sum(map(len, source_tokens)),
        bytes_one_to_one=bytes_one_to_one,
        source_tokens=len(source_tokens),
        receiver_tokens=len(receiver_tokens),
        sampled_otherwise=int(not canonical),
    )
