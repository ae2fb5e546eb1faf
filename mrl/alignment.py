"""THL, the Tokenizer Heterogeneity Layer (arXiv 2605.07244): one text, two tokenizations.

Everything happens on bytes. The bytes of a token follow from its piece in the vocabulary and from
the tokenizer's own description of its decoder. Character offsets and decoded strings are never
used, because they are wrong exactly where it matters: at split characters, and at marks that stand
for spaces.

    text --ByteCodec.encode--> receiver ids --token_bytes--> bytes of each token
    align(source bytes, receiver bytes) -> chunks between shared byte boundaries
    project(source bytes, receiver bytes, log-probs) -> log-probs at the receiver's tokens

A text whose bytes a tokenizer cannot represent exactly is refused with a reason, and never
repaired. A peer's text is encoded once, in stage 4 (`retokenize`). On a first reading, `align` and
`project` at the end of the file are enough.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how byte fallback spells one byte
# The orders of decoder steps for which the bytes of a token follow from its own piece alone. A
# decoder applies each step to one piece at a time, until ByteLevel or Fuse joins all pieces.
# - Replace must come before that step; otherwise it could match across two tokens.
# - Strip must come after that step; otherwise it would strip every token, not only the text.
# Accepted, for example: "ByteLevel " (Qwen) and "Replace ByteFallback Fuse Strip " (Llama 2).
# Refused: "Fuse Replace " and "Strip Fuse ".
EXACT_DECODER = re.compile(
    r"((Metaspace|Replace) )*(ByteLevel (Fuse )?(Strip )?|(ByteFallback )?(Fuse (Strip )?)?)"
)
# The alphabet of byte-level vocabularies: printable Latin-1 characters stand for themselves, and
# other bytes are spelled with characters from U+0100 on.
PRINTABLE = {byte for byte in range(256) if chr(byte).isprintable()} - {ord(" ")}
OTHER_BYTES = sorted({*range(256)} - PRINTABLE)
BYTE_OF = {chr(byte): byte for byte in PRINTABLE}
BYTE_OF |= {chr(256 + number): byte for number, byte in enumerate(OTHER_BYTES)}


class LossyText(ValueError):
    """A text or token sequence without an exact counterpart; `reason` names its counter."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


class ByteCodec:
    """You can skip this class on a first reading: it turns text into token ids and back.

    It keeps every byte. The ids stand for a text *that continues a prompt*, so the mark of a
    leading space is a real space. No token spans the boundary between prompt and completion.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", rows: int = sys.maxsize) -> None:
        """rows: the model's number of token ids. A text that needs any other token is refused."""
        self._tokenizer = tokenizer.backend_tokenizer
        description = json.loads(self._tokenizer.to_str())

        model = description["model"]
        self._unknown = model.get("unk_id")  # set only by Unigram models
        if model.get("unk_token"):
            self._unknown = self._tokenizer.token_to_id(model["unk_token"])
        specials = [token for token in description["added_tokens"] if token["special"]]
        self._special = {token["id"] for token in specials}
        self.markup = {token["content"]: token["id"] for token in specials}
        longest_first = sorted(self.markup, key=len, reverse=True)
        # splits a text at the special tokens that it spells out, and keeps them in the list
        self.split_markup = re.compile(
            f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})"
        ).split

        # A normalizer may turn the added token "<t>" into " <t>". We cannot know whether its id
        # then stands for "<t>" alone or also for a space of the text, so it gets no bytes here.
        changed = {
            token["id"]
            for token in description["added_tokens"]
            if self._tokenizer.id_to_token(token["id"]) != token["content"]
        }
        vocabulary = _vocabulary_bytes(self._tokenizer.get_vocab(), description)
        textless = {*self._special, *changed, self._unknown}
        self._bytes = {
            id: data for id, data in vocabulary.items() if id not in textless and id < rows
        }
        # `encode` tries these in front of a text; several, because some tokens swallow spaces
        self._anchors = [*(token["content"] for token in specials[:3]), "", "\n", ":", "0"]

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token. Raises LossyText for a token that has no bytes of its own.

        The ids may be any sampled ids, not only the tokenizer's own ids for their text.
        """
        if not self._bytes:
            raise LossyText("lossy_tokenizer", "its decoder does not say which bytes a token is")
        try:
            return [self._bytes[token_id] for token_id in token_ids]
        except KeyError as missing:
            # the unknown token is usually special as well, but "unknown" says more
            special = missing.args[0] in self._special - {self._unknown}
            reason = "special" if special else "unknown"
            detail = f"token {missing} stands for no text, or for an unknown text"
            raise LossyText(f"{reason}_token", detail) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the tokens. Raises LossyText, for example if a character is incomplete."""
        try:
            # joined before decoding, because a character may span several tokens
            return b"".join(self.token_bytes(token_ids)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise LossyText("not_utf8", str(error)) from None

    def encode(self, text: str) -> list[int]:
        """The tokenizer's own ids for a `text` that continues a prompt, byte for byte.

        Raises LossyText: "special_token" if the text spells out one, "unknown_token" if it holds a
        character that the tokenizer cannot write, "not_round_trippable" if the tokenizer changes it
        (as normalizers do), "not_utf8" for a lone surrogate, and "lossy_tokenizer" if the bytes of
        its tokens are not known.

        A tokenizer may treat the start of a text in a special way: many put a space there. So we
        put an anchor in front of the text, encode both, and cut the anchor's tokens off. We try
        several anchors, and also none, until the remaining tokens have exactly the bytes of the
        text. The first anchor is a special token, because chat templates end in one. For "5 figs":

            ":5 figs" -> ":", "5", " figs"   accepted: the last two tokens are the text
            ":5 figs" -> ":5", " figs"       next anchor: ":5" spans the boundary
            "5 figs"  -> " 5", " figs"       next anchor: the first token has an additional space
            "5 figs"  -> " ", "5", " figs"   accepted: the additional space is cut off
        """
        try:
            wanted = text.encode("utf-8")
        except UnicodeEncodeError:
            raise LossyText("not_utf8", "the text holds a lone surrogate") from None

        refusal = LossyText("not_round_trippable", "no tokenization has exactly these bytes")
        for anchor in self._anchors:
            # no <s> is added in front, because it would be removed instead of the anchor
            token_ids = self._tokenizer.encode(anchor + text, add_special_tokens=False).ids
            if anchor and token_ids and token_ids[0] in self._special:
                del token_ids[0]  # it has no bytes, so `token_bytes` would refuse it
            try:
                token_bytes = self.token_bytes(token_ids)
            except LossyText as error:
                # another anchor may work; if there is no anchor, the text itself is the reason
                if not anchor:
                    refusal = error
                continue

            # The number of bytes in the last 0, 1, 2, ... tokens. We count from the end, because we
            # do not know how many tokens the anchor or an additional space took.
            sizes = list(accumulate(map(len, reversed(token_bytes)), initial=0))
            # otherwise a token spans the boundary, and the next anchor is tried
            if len(wanted) in sizes and b"".join(token_bytes).endswith(wanted):
                count = sizes.index(len(wanted))  # the last `count` tokens are the text
                return token_ids[len(token_ids) - count :]
        raise refusal

    def encode_as_text(self, text: str) -> list[int]:
        """Like `encode`, but a special token that the text spells out stays plain text.

        Data must never become markup. If the tokenizer cannot represent the text exactly, the ids
        stand for a slightly different text.
        """
        self._tokenizer.encode_special_tokens = True
        try:
            return self.encode(text)
        except LossyText:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        finally:
            self._tokenizer.encode_special_tokens = False


def retokenize(
    codec: ByteCodec, text: str, eos_id: int | None, limit: int
) -> tuple[list[int], str]:
    """A peer's text in the receiver's tokens, or no tokens and the reason to refuse the text.

    eos_id: ends the tokens, if it is not None. It is added as an id, because `encode` refuses the
    text of a special token.

    The reasons are "thl/refused/..." if the receiver's tokenizer cannot represent the text exactly,
    "dropped/empty" if there is no token, and "dropped/too_long" if there are more than `limit`.
    """
    try:
        token_ids = codec.encode(text)
    except LossyText as refusal:
        return [], f"thl/refused/{refusal.reason}"
    if eos_id is not None:
        token_ids.append(eos_id)
    if not token_ids:
        return [], "dropped/empty"
    if len(token_ids) > limit:
        return [], "dropped/too_long"
    return token_ids, ""


def _vocabulary_bytes(vocabulary: dict[str, int], description: dict) -> dict[int, bytes]:
    """Token id -> bytes, from pieces and decoder; empty if the decoder does not determine them."""
    decoder = description["decoder"]
    if decoder is None:
        return {}  # tokens are then joined by spaces, which belong to no token

    steps = decoder.get("decoders", [decoder])  # the steps of a Sequence, or the only step
    if not EXACT_DECODER.fullmatch("".join(f"{step['type']} " for step in steps)):
        return {}  # for example WordPiece, which drops spaces and guesses them back
    for step in steps:
        if "Regex" in step.get("pattern", ()):
            return {}  # these regular expressions are not in Python's dialect
        if step.get("stop"):
            return {}  # this Strip also removes characters at the end of the text

    token_bytes = {}
    for piece, token_id in vocabulary.items():
        token_bytes[token_id] = _piece_bytes(piece, steps)

    pieces = set()
    for entry in description["model"]["vocab"]:
        pieces.add(entry if isinstance(entry, str) else entry[0])  # Unigram: a pair [piece, score]

    # An added token is matched in the raw text, so its bytes are its content: "<t>" is b"<t>".
    # There is one exception: if the vocabulary also has a piece with this spelling, for example
    # "▁t", the id may come from that piece, where "▁" means a space. Then the token
    # keeps the bytes that the decoder gives, b" t".
    for token in description["added_tokens"]:
        if token["content"] not in pieces or token_bytes[token["id"]] is None:
            token_bytes[token["id"]] = token["content"].encode("utf-8")

    return {token_id: data for token_id, data in token_bytes.items() if data is not None}


def _piece_bytes(piece: str, steps: list[dict]) -> bytes | None:
    r"""The bytes that the decoder makes from one piece; None for a piece outside its alphabet.

    One example for each branch:

        Metaspace      "▁figs"   -> b" figs"
        Replace        "▁figs"   -> b" figs"   (with the pattern "▁" and the content " ")
        ByteFallback   "<0xC3>"  -> b"\xc3"    the first byte of "é"
        ByteLevel      "Ġfigs"   -> b" figs"
        ByteLevel      "▁figs"   -> None       "▁" stands for no byte in this alphabet
        no such step   "figs"    -> b"figs"
    """
    for step in steps:
        if step["type"] == "Metaspace":
            piece = piece.replace(step["replacement"], " ")
        elif step["type"] == "Replace":
            piece = piece.replace(step["pattern"]["String"], step["content"])
        elif step["type"] == "ByteFallback":
            byte = BYTE_PIECE.fullmatch(piece)
            if byte:
                return bytes([int(byte[1], 16)])
        elif step["type"] == "ByteLevel":
            if any(character not in BYTE_OF for character in piece):
                return None
            return bytes(BYTE_OF[character] for character in piece)
    return piece.encode("utf-8")


def split_text(text: str, token_lengths: Sequence[int]) -> list[bytes]:
    """The bytes of each source token, from the text and the token lengths that a record holds."""
    data = text.encode("utf-8")
    # the lengths add up to the bytes of the text, or the exchange would have refused the record
    return [data[start:stop] for start, stop in pairwise(accumulate(token_lengths, initial=0))]


class Chunk(NamedTuple):
    """A span between two neighboring shared boundaries, in bytes and in the tokens of both sides.

    Each of the three fields is a range (start, stop) that does not include `stop`.
    """

    bytes: tuple[int, int]
    source: tuple[int, int]
    receiver: tuple[int, int]

    @property
    def one_to_one(self) -> bool:
        """True if it has one token on each side, so that no log-prob has to be spread."""
        source_count = self.source[1] - self.source[0]
        receiver_count = self.receiver[1] - self.receiver[0]
        return source_count == 1 and receiver_count == 1


def align(source_tokens: Sequence[bytes], receiver_tokens: Sequence[bytes]) -> list[Chunk]:
    """Cut two tokenizations of one text at every byte boundary that they share.

        source    |a b|c|d e|    token ends at bytes 2, 3, 5
        receiver  |a|b c|d e|    token ends at bytes 1, 3, 5
        chunks    |a b c|d e|    Chunk((0, 3), (0, 2), (0, 2)), Chunk((3, 5), (2, 3), (2, 3))

    By the chain rule, the log-prob of a chunk is the exact sum over its tokens on either side. So
    ratios of chunks are well defined, while ratios of tokens are not (arXiv 2605.07244, THL).

    The chunks cover both sequences, and none of them can be cut further. A token of zero bytes
    belongs to the chunk that ends at its position; at the start of the text, to the first chunk.
    The time is linear in the number of tokens. Raises LossyText ("different_bytes") if the two
    tokenizations do not have the same bytes.
    """
    if b"".join(source_tokens) != b"".join(receiver_tokens):
        raise LossyText("different_bytes", "the two tokenizations are not of the same bytes")

    source_ends, receiver_ends = _token_ends(source_tokens), _token_ends(receiver_tokens)
    chunks: list[Chunk] = []
    start = i_start = j_start = 0  # first byte, source token and receiver token of the chunk
    for end, i in source_ends.items():
        if end == 0 or end not in receiver_ends:
            continue  # the start of the text, or not a shared boundary
        j = receiver_ends[end]
        chunks.append(Chunk((start, end), (i_start, i), (j_start, j)))
        start, i_start, j_start = end, i, j

    if not chunks and (source_tokens or receiver_tokens):  # all tokens have zero bytes
        return [Chunk((0, 0), (0, len(source_tokens)), (0, len(receiver_tokens)))]
    return chunks


def _token_ends(tokens: Sequence[bytes]) -> dict[int, int]:
    """Byte offset -> the number of tokens that end at or before it, in order of offsets.

    A token of zero bytes ends where the token before it ends, so it replaces that entry:
    [b"ab", b"", b"c"] gives {2: 2, 3: 3}.
    """
    return {end: count for count, end in enumerate(accumulate(map(len, tokens)), start=1)}


def project(
    source_tokens: Sequence[bytes], receiver_tokens: Sequence[bytes], logprobs: Sequence[float]
) -> tuple[list[float], list[int]]:
    """Carry the source's log-probs (nats, one per source token) over to the receiver's tokens.

    Returns a log-prob and a chunk number for each receiver token. The sum over a chunk is exact. If
    a chunk has several receiver tokens, each gets a share of the sum in proportion to its bytes,
    which is approximate. For the example of `align`, with log-probs -1, -2 and -0.5:

        chunk 0   -1 + -2 = -3 over 3 bytes   a: -1,  bc: -2
        chunk 1   -0.5                        de: -0.5
    """
    spread, chunk_of = [], []
    for number, chunk in enumerate(align(source_tokens, receiver_tokens)):
        total = sum(logprobs[slice(*chunk.source)])  # log p(the chunk's tokens | earlier tokens)
        size = chunk.bytes[1] - chunk.bytes[0]
        chunk_tokens = receiver_tokens[slice(*chunk.receiver)]

        for token in chunk_tokens:
            # each byte gets an equal share; if the chunk has no bytes, each token does
            share = len(token) / size if size else 1 / len(chunk_tokens)
            spread.append(total * share)
            chunk_of.append(number)
    return spread, chunk_of


# What alignment loses, as sums over records, which add up to those of a run. The keys are:
#   records, bytes, source_tokens, receiver_tokens
#   bytes_one_to_one   bytes in chunks of one source token and one receiver token
# The paper (arXiv 2605.07244) asks to measure what is lost between tokenizers, so that one can
# budget for it. Its abstract does not say how, so these numbers are our choice.
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
