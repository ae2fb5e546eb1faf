"""What alignment loses, as numbers per record that add up to those of a run.

The paper (arXiv 2605.07244) asks to measure what is lost between tokenizers, so that one can budget
for it. Its abstract does not say how, so these numbers are our choice. We measure neither the
spread of log-probs within a chunk nor bits per byte.
"""

from collections import Counter
from collections.abc import Sequence

from mrl.alignment import align

# Sums over records. The keys are:
#   records, bytes, source_tokens, receiver_tokens
#   bytes_one_to_one   bytes in chunks of one source token and one receiver token
# `total.update(other)` *adds*, because Residual is a Counter.
Residual = Counter[str]


def measure(source_tokens: Sequence[bytes], receiver_tokens: Sequence[bytes]) -> Residual:
    """The residual of one record, computed from both tokenizations of its text."""
    # count the bytes of chunks that are one token on each side: nothing is spread there
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
    )
