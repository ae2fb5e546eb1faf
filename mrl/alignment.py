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
from itertools import accumulate, pairwise
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how byte fallback spells one byte
# The orders of decoder steps in which a token's bytes follow from its own piece. Steps see one
# piece at a time until ByteLevel or Fuse joins the text. So Replace must come before them, because
# later it could match across tokens; and Strip after them, because earlier it would trim each token
EXACT_DECODER = re.compile(
    r"((Metaspace|Replace) )*(ByteLevel (Fuse )?(Strip )?|(ByteFallback )?(Fuse (Strip )?)?)"
)
# of byte-level vocabularies: printable Latin-1 stands for itself, other bytes for U+0100 and on
BYTE_OF = {character: byte for byte, character in bytes_to_unicode().items()}


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

        model = description["model"]
        self._unknown = model.get("unk_id")  # Unigram alone names its unknown token by id
        if model.get("unk_token"):
            self._unknown = self._tokenizer.token_to_id(model["unk_token"])
        specials = [token for token in description["added_tokens"] if token["special"]]
        self._special = {token["id"] for token in specials}
        self.markup = {token["content"]: token["id"] for token in specials}
        longest_first = sorted(self.markup, key=len, reverse=True)
        # splits a text at the special tokens that it spells, and keeps them
        self.split_markup = re.compile(
            f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})"
        ).split

        # A normalizer may turn the added token "<t>" into " <t>". Whether its id then stands for
        # "<t>" or takes a space of the text along is not known, so it has no bytes here.
        changed = {
            token["id"]
            for token in description["added_tokens"]
            if self._tokenizer.id_to_token(token["id"]) != token["content"]
        }
        vocabulary = _vocabulary_bytes(self._tokenizer.get_vocab(), description)
        textless = {*self._special, *changed, self._unknown}
        self._bytes = {id: data for id, data in vocabulary.items() if id not in textless}
        # what `encode` puts before a text; several, because a special token may swallow spaces
        self._anchors = [*(token["content"] for token in specials[:3]), "", "\n", ":", "0"]

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token. Raises LossyText for tokens without bytes of their own.

        Takes ids as they were sampled: they need not be the tokenizer's own for their text.
        """
        if not self._bytes:
            raise LossyText("lossy_tokenizer", "its decoder does not say which bytes a token is")
        try:
            return [self._bytes[token_id] for token_id in token_ids]
        except KeyError as missing:
            # the unknown token is mostly registered as special, too; "unknown" says more
            special = missing.args[0] in self._special - {self._unknown}
            reason = "special" if special else "unknown"
            detail = f"token {missing} stands for no text, or for text that is unknown"
            raise LossyText(f"{reason}_token", detail) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the tokens. Raises LossyText, also for a character that was cut off."""
        try:
            # joined before it is decoded: a character may lie across tokens
            return b"".join(self.token_bytes(token_ids)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise LossyText("not_utf8", str(error)) from None

    def encode(self, text: str) -> list[int]:
        """The tokenizer's own ids for `text` behind a prompt; their bytes are those of `text`.

        Raises LossyText: "special_token" if the text spells one, "unknown_token" if it holds a
        character that the tokenizer cannot write, "not_round_trippable" if the tokenizer changes
        it (normalisers do), "not_utf8" for a lone surrogate, and "lossy_tokenizer" if the bytes of
        its tokens are not known.

        The text is tried behind anchors whose tokens are cut off again, and alone. Chat templates
        end in a special token, so that anchor comes first. Metaspace tokenizers put a space in
        front of a text, but not behind a special token, or not behind other text. Whatever is
        tried, the bytes decide.
        """
        try:
            wanted = text.encode("utf-8")
        except UnicodeEncodeError:
            raise LossyText("not_utf8", "the text holds a lone surrogate") from None

        refusal = LossyText("not_round_trippable", "no tokenization has exactly these bytes")
        for anchor in self._anchors:
            # no special tokens added: a <s> in front would be cut off in the anchor's place
            token_ids = self._tokenizer.encode(anchor + text, add_special_tokens=False).ids
            if anchor and token_ids and token_ids[0] in self._special:
                del token_ids[0]  # it has no bytes: `token_bytes` would refuse it
            try:
                token_bytes = self.token_bytes(token_ids)
            except LossyText as error:
                # another anchor may still do; the reason without one is the text's alone
                if not anchor:
                    refusal = error
                continue

            # bytes of the last 0, 1, 2, ... tokens: counted from the end, because how many tokens
            # the front (anchor, dummy space) took is not known
            sizes = list(accumulate(map(len, reversed(token_bytes)), initial=0))
            # if not, a token lies across the edge between anchor and text: try the next anchor
            if len(wanted) in sizes and b"".join(token_bytes).endswith(wanted):
                count = sizes.index(len(wanted))  # the text is the last `count` tokens
                return token_ids[len(token_ids) - count :]
        raise refusal

    def encode_as_text(self, text: str) -> list[int]:
        """As `encode`, but a special token that the text spells is text: data is never markup.

        If the tokenizer cannot hold the text exactly, it gets the tokens that come nearest to it.
        """
        self._tokenizer.encode_special_tokens = True
        try:
            return self.encode(text)
        except LossyText:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        finally:
            self._tokenizer.encode_special_tokens = False


def _vocabulary_bytes(vocabulary: dict[str, int], description: dict) -> dict[int, bytes]:
    """Token id -> bytes, from pieces and decoder; empty if the decoder says too little."""
    decoder = description["decoder"]
    if decoder is None:
        return {}  # such tokens are joined by spaces, and no token holds those

    steps = decoder.get("decoders", [decoder])  # those of a Sequence
    if not EXACT_DECODER.fullmatch("".join(f"{step['type']} " for step in steps)):
        return {}  # WordPiece, for one, drops spaces and guesses them back
    for step in steps:
        if "Regex" in step.get("pattern", ()):
            return {}  # of another dialect than Python's
        if step.get("stop"):
            return {}  # a Strip that takes from the end of the text

    token_bytes = {}
    for piece, token_id in vocabulary.items():
        token_bytes[token_id] = _piece_bytes(piece, steps)

    pieces = set()
    for entry in description["model"]["vocab"]:
        pieces.add(entry if isinstance(entry, str) else entry[0])  # Unigram: [piece, score]

    # An added token is found in the raw text, so its bytes are its content. If the vocabulary has a
    # piece that is written alike, the id may come from there, where "▁" can mean a space. So then
    # the decoder's reading stays.
    for token in description["added_tokens"]:
        if token["content"] not in pieces or token_bytes[token["id"]] is None:
            token_bytes[token["id"]] = token["content"].encode("utf-8")

    return {token_id: data for token_id, data in token_bytes.items() if data is not None}


def _piece_bytes(piece: str, steps: list[dict]) -> bytes | None:
    """The bytes that the decoder makes of one piece; None for a piece outside the alphabet."""
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
            data = [BYTE_OF.get(character) for character in piece]
            return None if None in data else bytes(data)
    return piece.encode("utf-8")


def split_text(text: str, token_lengths: Sequence[int]) -> list[bytes]:
    """The bytes of each source token, from their lengths: how tokens cross the exchange."""
    data = text.encode("utf-8")
    # the lengths add up to the text: the exchange refuses any other record
    return [data[start:stop] for start, stop in pairwise(accumulate(token_lengths, initial=0))]


class Chunk(NamedTuple):
    """A span between two neighbouring shared boundaries: bytes, source tokens, receiver tokens.

    All ranges are (start, stop), stop excluded.
    """

    bytes: tuple[int, int]
    source: tuple[int, int]
    receiver: tuple[int, int]

    @property
    def one_to_one(self) -> bool:
        """One source token against one receiver token: nothing has to be spread."""
        source_count = self.source[1] - self.source[0]
        receiver_count = self.receiver[1] - self.receiver[0]
        return source_count == 1 and receiver_count == 1


def align(source_tokens: Sequence[bytes], receiver_tokens: Sequence[bytes]) -> list[Chunk]:
    """Cut two tokenizations of one text at every byte boundary that they share.

    By the chain rule the log-prob of a chunk is the exact sum over its tokens on either side, so
    chunk-level ratios are well defined where token-level ones are not (arXiv 2605.07244, THL).
    Chunks tile both sequences; none can be cut further. A token of zero bytes belongs to the chunk
    that ends where it stands, or to the first one. Linear in the number of tokens.
    Raises LossyText ("different_bytes") if the texts differ.
    """
    if b"".join(source_tokens) != b"".join(receiver_tokens):
        raise LossyText("different_bytes", "the two tokenizations are not of the same bytes")

    source_ends, receiver_ends = _token_ends(source_tokens), _token_ends(receiver_tokens)
    chunks: list[Chunk] = []
    start = i_start = j_start = 0  # where the open chunk began: byte, source and receiver token
    for end, i in source_ends.items():
        if end == 0 or end not in receiver_ends:
            continue  # no shared boundary, or the start of the text
        j = receiver_ends[end]
        chunks.append(Chunk((start, end), (i_start, i), (j_start, j)))
        start, i_start, j_start = end, i, j

    if not chunks and (source_tokens or receiver_tokens):  # zero-byte tokens and nothing else
        return [Chunk((0, 0), (0, len(source_tokens)), (0, len(receiver_tokens)))]
    return chunks


def _token_ends(tokens: Sequence[bytes]) -> dict[int, int]:
    """Byte offset -> how many tokens have ended there, in order.

    A token of zero bytes ends where the token before it does, and takes its place.
    """
    return {end: count for count, end in enumerate(accumulate(map(len, tokens)), start=1)}


def project(
    source_tokens: Sequence[bytes], receiver_tokens: Sequence[bytes], logprobs: Sequence[float]
) -> tuple[list[float], list[int]]:
    """The source's log-probs (nats, one per source token) at the receiver's tokens.

    Returns a log-prob and a chunk number for each receiver token. A chunk's sum is exact; it is
    spread over the chunk's tokens by bytes, which is approximate where they are more than one.
    """
    spread, chunk_of = [], []
    for number, chunk in enumerate(align(source_tokens, receiver_tokens)):
        total = sum(logprobs[slice(*chunk.source)])  # log p(the chunk's tokens | those before)
        size = chunk.bytes[1] - chunk.bytes[0]
        chunk_tokens = receiver_tokens[slice(*chunk.receiver)]

        for token in chunk_tokens:
            # by bytes, so that each byte costs the same; equally where the chunk has none
            share = len(token) / size if size else 1 / len(chunk_tokens)
            spread.append(total * share)
            chunk_of.append(number)
    return spread, chunk_of
