"""A tokenizer with one token per letter, for bandits and assignments: token 0 is "a"."""

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from mrl.alignment import ByteCodec

LETTERS = Tokenizer(models.BPE({chr(97 + number): number for number in range(26)}, []))
LETTERS.decoder = decoders.Fuse()
CODEC = ByteCodec(PreTrainedTokenizerFast(tokenizer_object=LETTERS))
