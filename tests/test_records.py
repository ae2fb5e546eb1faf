import json
import pickle
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mrl.alignment import ByteCodec, LossyText
from mrl.exchange import Exchange
from mrl.records import RewardStats, RolloutRecord, SuccessRecord, make_records
from mrl.reward import Verdict
from mrl.samples import Group, Problem, Rollout

SUCCESS = SuccessRecord(
    prompt_id="p", source="a", version=0, text="\\boxed{1}", finished=True, answer="1",
    verdict="correct", token_lengths=(9,), canonical=True,
)  # fmt: skip
STATS = RewardStats(prompt_id="p", source="a", version=0, count=4, mean=0.25, std=0.4330127)
ROLLOUT = RolloutRecord(
    prompt_id="p", source="a", version=0, text="é1", finished=True, token_lengths=(1, 1, 1),
    canonical=False, logprobs=(-1.0, -2.0, -0.5), end_logprob=-0.1, verdict="wrong", reward=0.0,
)  # fmt: skip


@pytest.fixture
def group(make_policy):
    """A right completion that ended and a wrong one that was cut, and their codec."""
    codec = make_policy().codec
    rollouts = []
    for text, verdict, finished in (
        ("\\boxed{1}", Verdict.CORRECT, True),
        ("\\boxed{2}", Verdict.WRONG, False),
    ):
        completion_ids = codec.encode(text) + [0] * finished
        logprobs = [-0.5 * (n + 1) for n in range(len(completion_ids))]
        rollouts.append(Rollout(completion_ids, logprobs, finished, text, verdict))
    return Group(Problem("p", "?", "1"), [5], rollouts), codec


def test_each_level_says_its_own_and_nothing_more(group):
    group, codec = group
    stats, *_ = make_records(RewardStats, "a", 3, [group], codec)
    assert stats == RewardStats(prompt_id="p", source="a", version=3, count=2, mean=0.5, std=0.5)
    successes = list(make_records(SuccessRecord, "a", 3, [group], codec))
    assert [record.text for record in successes] == ["\\boxed{1}"]
    assert not {"logprobs", "end_logprob", "reward"} & set(vars(successes[0]))
    assert successes[0].canonical
    one, two = make_records(RolloutRecord, "a", 3, [group], codec)
    assert (one.index, two.index) == (0, 1)
    assert sum(one.token_lengths) == len("\\boxed{1}")
    assert len(one.logprobs) == len(one.token_lengths)
    assert one.end_logprob == group.rollouts[0].logprobs[-1]
    assert (two.finished, two.end_logprob, two.reward) == (False, None, 0.0)


def test_a_completion_that_does_not_survive_as_bytes_is_refused_with_its_reason(group):
    group, codec = group
    group.rollouts[0].completion_ids = [*codec.encode("😀")[:1], 0]
    made = make_records(SuccessRecord, "a", 0, [group], codec)
    assert [Exchange().publish(record, "a") for record in made] == ["not_utf8"]


def one_token_a_byte():
    """A byte-level tokenizer without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("12\u00e9=5", True), ("12e\u0301=5", False), ("12<end>", False)],
    ids=["composed", "a text that NFC changes", "a special token spelled out"],
)
def test_a_text_that_cannot_be_encoded_again_is_exact_all_the_same(text, canonical):
    completion_ids = one_token_a_byte().encode(text).ids  # as sampled: any bytes can be
    tokenizer = one_token_a_byte()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<end>"])
    codec = ByteCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    rollout = Rollout(completion_ids, [-1.0] * len(completion_ids), False, text, Verdict.CORRECT)
    groups = [Group(Problem("p", "?", "5"), [5], [rollout])]
    for kind in (SuccessRecord, RolloutRecord):
        (record,) = make_records(kind, "a", 0, groups, codec)
        assert (record.text, record.canonical) == (text, canonical)
        assert record.token_lengths == (1,) * len(text.encode())
        assert Exchange().publish(record, "a") is None


def test_value_level_is_far_cheaper_than_data_level(group):
    group, codec = group
    price = {
        kind: sum(len(record.line) for record in make_records(kind, "a", 0, [group], codec))
        for kind in (RewardStats, SuccessRecord, RolloutRecord)
    }
    assert price[RewardStats] < price[SuccessRecord] < price[RolloutRecord]


@pytest.mark.parametrize("record", [SUCCESS, STATS, ROLLOUT, replace(ROLLOUT, end_logprob=None)])
def test_a_record_comes_back_from_its_line_and_from_another_process_as_it_was(record):
    fields = json.loads(record.line)
    assert fields.pop("kind") == record.kind
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    assert type(record)(**fields) == record
    sent = pickle.loads(pickle.dumps(record))
    assert (sent, sent.line) == (record, record.line)
    assert replace(record, index=3).line != record.line  # written once, but for each record


def test_a_refusal_keeps_its_reason_on_the_way_to_another_process():
    sent = pickle.loads(pickle.dumps(LossyText("not_utf8", "a character was cut")))
    assert (sent.reason, str(sent)) == ("not_utf8", "a character was cut")


def test_a_finished_records_logprobs_are_those_of_its_content(group):
    made, codec = group
    one, two = make_records(RolloutRecord, "a", 3, [made], codec)
    assert one.logprobs == tuple(made.rollouts[0].logprobs[:-1])
    assert two.logprobs == tuple(made.rollouts[1].logprobs)


def test_ids_that_spell_a_text_in_another_way_are_not_canonical(make_policy):
    codec, text = make_policy().codec, "\\boxed{1}"
    ids = [token for letter in text for token in codec.encode(letter)]
    assert ids != codec.encode(text)
    made = Group(
        Problem("p", "?", "1"), [5], [Rollout(ids, [-1.0] * len(ids), False, text, Verdict.CORRECT)]
    )
    (record,) = make_records(SuccessRecord, "a", 0, [made], codec)
    assert not record.canonical
