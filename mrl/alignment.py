"""THL, the Tokenizer Heterogeneity Layer (arXiv 2605.07244): one text, two tokenizations.

Everything happens on bytes. A token's bytes follow from its piece in the vocabulary and from the
decoder that the tokenizer describes itself with; character offsets and decoded strings are never
consulted, because they are wrong just where it matters (split characters, marks for spaces).

    text --encode--> receiver ids --token_bytes--> bytes of each token
    align(source bytes, receiver bytes) -> chunks between shared byte boundaries
    project(source bytes, receiver bytes, log-probs) -> log-probs at the receiver's tokens

Text that does not survive as bytes is refused with a reason, never repaired.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how byte fallback spells one byte
# The orders of decoder steps in which a token's bytes follow from its own piece. Behind Fuse a step
# sees the joined text: a Replace there crosses tokens, while a Strip before it trims every token.
EXACT_DECODER = re.compile(
    r"((Metaspace|Replace) )*(ByteLevel (Fuse )?(Strip )?|(ByteFallback )?(Fuse (Strip )?)?)"
)
CACHED_TEXTS = 10_000  # a bound for callers that never clear the cache


class LossyText(ValueError):
    """A text or token sequence that has no exact counterpart; `reason` is a word to count by."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


class ByteCodec:
    """Text <-> token ids of one fast tokenizer, exact on bytes.

    Ids stand for text *as it continues a prompt*: a mark for a leading space is a space. Text is
    never merged across the edge between prompt and completion.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        description = json.loads(self._tokenizer.to_str())
        self._bytes = _vocabulary_bytes(self._tokenizer.get_vocab(), description)
        self._special = {t["id"] for t in description["added_tokens"] if t["special"]}
        model = description["model"]
        unknown = model.get("unk_token")
        # Unigram alone names its unknown token by id
        self._unknown = self._tokenizer.token_to_id(unknown) if unknown else model.get("unk_id")
        # several, as a special token may swallow the spaces beside it (rstrip)
        specials = [t["content"] for t in description["added_tokens"] if t["special"]]
        self._anchors = [*specials[:3], "", "\n", ":", "0"]
        self._cache: dict[str, list[int] | LossyText] = {}

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token. Raises LossyText for tokens without bytes of their own.

        Takes ids as they were sampled: they need not be the tokenizer's own for their text.
        """
        if self._bytes is None:
            raise LossyText("lossy_tokenizer", "its decoder does not say which bytes a token is")
        token_bytes = []
        for token_id in token_ids:
            # the unknown token is mostly registered as special, too; "unknown" says more
            if token_id in self._special and token_id != self._unknown:
                raise LossyText("special_token", f"token {token_id} stands for no text")
            if token_id not in self._bytes or token_id == self._unknown:
                raise LossyText("unknown_token", f"token {token_id} stands for unknown text")
            token_bytes.append(self._bytes[token_id])
        return token_bytes

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the tokens. Raises LossyText, also for a character that was cut off."""
        try:
            # joined before it is decoded: a character may lie across tokens
            return b"".join(self.token_bytes(token_ids)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise LossyText("not_utf8", str(error)) from None

    def encode(self, text: str) -> list[int]:
        """The tokenizer's own ids for `text` behind a prompt; their bytes are those of `text`.

        Raises LossyText: "special_token" if the text spells one, "not_round_trippable" if the
        tokenizer changes it (normalisers do) or cannot write it.
        """
        if text not in self._cache:
            if len(self._cache) >= CACHED_TEXTS:
                self._cache.clear()
            try:
                self._cache[text] = self._encode(text)
            except LossyText as loss:
                self._cache[text] = loss  # refusals are the dearest: every anchor was tried
        found = self._cache[text]
        if isinstance(found, LossyText):
            raise found.with_traceback(None)  # else each raise adds frames to the one object
        return list(found)  # a copy: what callers do to it must not reach the cache

    def clear_cache(self) -> None:
        """Forget the texts encoded so far (the trainer does so after each step)."""
        self._cache.clear()

    def _encode(self, text: str) -> list[int]:
        """Try the text behind anchors whose tokens are cut off again, and alone.

        Chat templates end in a special token, so that anchor comes first. Metaspace tokenizers put
        a space in front of a text, but not behind a special token, or not behind other text.
        Whatever is tried, the bytes decide.
        """
        try:
            wanted = text.encode("utf-8")
        except UnicodeEncodeError:
            raise LossyText("not_utf8", "the text holds a lone objective") from None
        loss = LossyText("not_round_trippable", "no tokenization has exactly the bytes of the text")
        for anchor in self._anchors:
            # no special tokens added: a <s> in front would stand between anchor and text
            token_ids = self._tokenizer.encode(anchor + text, add_special_tokens=False).ids
            if anchor and token_ids and token_ids[0] in self._special:
                token_ids = token_ids[
                    1:
                ]  # special tokens have no bytes: `token_bytes` would refuse it
            try:
                found = _last_tokens(token_ids, self.token_bytes(token_ids), wanted)
            except LossyText as reason:
                loss = reason
                continue  # another anchor may still do, so the last reason is the one that counts
            if found is not None:  # None: a token of the text has merged with the anchor
                return found
        raise loss


def _last_tokens(token_ids: list[int], token_bytes: list[bytes], wanted: bytes) -> list[int] | None:
    """The last tokens whose bytes are exactly `wanted`; None if a token straddles its start."""
    # backwards, as the number of tokens in front (anchor, dummy space) is not known
    left, start = len(wanted), len(token_bytes)
    while left > 0 and start > 0:
        start -= 1
        left -= len(token_bytes[start])
    return token_ids[start:] if b"".join(token_bytes[start:]) == wanted else None


def _vocabulary_bytes(vocabulary: dict[str, int], description: dict) -> dict[int, bytes] | None:
    """Token id -> bytes, from token_bytes and decoder; None if the decoder says too little."""
    steps = _exact_steps(description["decoder"])
    if steps is None:
        return None
    added = {token["id"] for token in description["added_tokens"]}
    byte_of = _byte_level_alphabet()
    found = {}
    for piece, token_id in vocabulary.items():
        # added tokens are matched in the raw text, so they stand for it as it is
        data = piece.encode("utf-8") if token_id in added else _piece_bytes(piece, steps, byte_of)
        if data is not None:
            found[token_id] = data
    return found


def _exact_steps(decoder: dict | None) -> list[dict] | None:
    """The decoder as a list of steps; None if a token's bytes do not follow from its piece."""
    if decoder is None:
        return None  # such tokens are joined by spaces, and no token holds those
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = "".join(f"{step['type']} " for step in steps)
    if not EXACT_DECODER.fullmatch(kinds):
        return None  # WordPiece, for one, drops spaces and guesses them back
    for step in steps:
        if step["type"] == "Replace" and "String" not in step["pattern"]:
            return None  # a regular expression of another dialect than Python's
        if step["type"] == "Strip" and step["stop"]:
            return None  # takes from the end of the text; the start belongs to the prompt
    return steps


def _piece_bytes(piece: str, steps: list[dict], byte_of: dict[str, int]) -> bytes | None:
    """The bytes that the decoder makes of one piece; None for a piece outside the alphabet."""
    for step in steps:
        if step["type"] == "Metaspace":
            piece = piece.replace(step["replacement"], " ")
        elif step["type"] == "Replace":
            piece = piece.replace(step["pattern"]["String"], step["content"])
        elif step["type"] == "ByteFallback" and (match := BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        elif step["type"] == "ByteLevel":
            known = all(character in byte_of for character in piece)
            return bytes(byte_of[character] for character in piece) if known else None
    return piece.encode("utf-8")


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level vocabularies: printable Latin-1 stands for itself, the other
    bytes for the characters from U+0100 on, in order."""
    # GPT-2's table. Left out: controls, space (it becomes U+0120), 0x7F to 0xA0, soft hyphen 0xAD
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


def retokenize(codec: ByteCodec, text: str, finished: bool, end_id: int) -> list[int]:
    """A peer's completion in the receiver's tokens; its own end token iff the peer had finished.

    Raises LossyText where the receiver's tokenizer cannot hold the text exactly.
    """
    # the end token joins as an id: spelled out in the text it would be refused as special
    return codec.encode(text) + ([end_id] if finished else [])


def split_text(text: str, token_lengths: Sequence[int]) -> list[bytes]:
    """The bytes of each source token, from their lengths: how tokens cross the exchange.

    Raises LossyText if the lengths do not add up to the text.
    """
    data = text.encode("utf-8")
    # a negative length could make up for one that is too long
    if sum(token_lengths) != len(data) or any(length < 0 for length in token_lengths):
        raise LossyText("not_round_trippable", "token lengths do not add up to the text")
    token_bytes, start = [], 0
    for length in token_lengths:
        token_bytes.append(data[start : start + length])
        start += length
    return token_bytes


@dataclass(frozen=True)
class Chunk:
    """A span between two neighbouring shared boundaries: bytes, source tokens, receiver tokens.

    All ranges are (start, stop), stop excluded.
    """

    bytes: tuple[int, int]
    source: tuple[int, int]
    receiver: tuple[int, int]

    @property
    def one_to_one(self) -> bool:
        """One source token against one receiver token: nothing has to be spread."""
        return self.source[1] - self.source[0] == 1 == self.receiver[1] - self.receiver[0]


def align(source: Sequence[bytes], receiver: Sequence[bytes]) -> list[Chunk]:
    """Cut two tokenizations of one text at every byte boundary that they share.

    By the chain rule the log-prob of a chunk is the exact sum over its tokens on either side, so
    chunk-level ratios are well defined where token-level ones are not (arXiv 2605.07244, THL).
    Chunks tile both sequences; none can be cut further. A token of zero bytes belongs to the chunk
    that ends where it stands, or to the first one. Linear in the number of tokens.
    Raises LossyText ("different_bytes") if the texts differ.
    """
    if b"".join(source) != b"".join(receiver):
        raise LossyText("different_bytes", "the two tokenizations are not of the same bytes")
    chunks: list[Chunk] = []
    start = i_start = j_start = 0  # where the open chunk began: byte, source and receiver token
    i = j = i_byte = j_byte = 0  # tokens read so far on either side, and the byte where they end
    while i < len(source) or j < len(receiver):
        # step on the side that is behind; nobody waits, so this is linear
        if j == len(receiver) or (i < len(source) and i_byte <= j_byte):
            i_byte += len(source[i])
            i += 1
        else:
            j_byte += len(receiver[j])
            j += 1
        if i_byte != j_byte or i_byte == start:  # no shared boundary, or only zero-byte tokens yet
            continue
        # tokens of zero bytes stand at this very boundary: they close this chunk on either side
        while i < len(source) and not source[i]:
            i += 1
        while j < len(receiver) and not receiver[j]:
            j += 1
        chunks.append(Chunk((start, i_byte), (i_start, i), (j_start, j)))
        start, i_start, j_start = i_byte, i, j
    if not chunks and (source or receiver):  # zero-byte tokens and nothing else
        return [Chunk((0, 0), (0, len(source)), (0, len(receiver)))]
    return chunks


def project(
    source: Sequence[bytes], receiver: Sequence[bytes], logprobs: Sequence[float]
) -> tuple[list[float], list[int]]:
    """The source's log-probs (nats, one a source token) at the receiver's tokens.

    Returns a log-prob and a chunk number for each receiver token. A chunk's sum is exact; it is
    spread over the chunk's tokens by bytes, which is approximate where they are more than one.
    """
    spread, chunk_of = [], []
    for number, chunk in enumerate(align(source, receiver)):
        total = sum(logprobs[slice(*chunk.source)])  # log p(the chunk's text | what is before it)
        size = chunk.bytes[1] - chunk.bytes[0]
        token_bytes = receiver[slice(*chunk.receiver)]
        # by bytes, so that each byte costs the same; equally where the chunk has none
        spread += [
            total * (len(piece) / size if size else 1 / len(token_bytes)) for piece in token_bytes
        ]
        chunk_of += [number] * len(token_bytes)
    return spread, chunk_of
