import json
import pickle
import random
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mrl.alignment import ByteCodec, LossyText
from mrl.errors import MrlError
from mrl.exchange import Exchange
from mrl.records import Record, RewardStats, RolloutRecord, SuccessRecord, make_records
from mrl.runtime.run_directory import read_records
from mrl.samples import Group, Problem, Rollout, Verdict

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
    assert Record.from_json(record.line) == record
    assert Record.from_json(record.line.decode()) == record
    sent = pickle.loads(pickle.dumps(record))
    assert (sent, sent.line) == (record, record.line)
    assert replace(record, index=3).line != record.line  # written once, but for each record


def test_a_refusal_keeps_its_reason_on_the_way_to_another_process():
    sent = pickle.loads(pickle.dumps(LossyText("not_utf8", "a character was cut")))
    assert (sent.reason, str(sent)) == ("not_utf8", "a character was cut")


def test_a_log_is_read_past_a_torn_last_line_and_past_broken_ones(tmp_path):
    lines = [record.line.decode() for record in (SUCCESS, STATS, ROLLOUT)]
    log = tmp_path / "exchange.jsonl"
    log.write_text("\n".join([lines[0], "{nonsense", lines[1], lines[2], lines[0][:40]]))
    assert read_records(log) == [SUCCESS, STATS, ROLLOUT]


@pytest.mark.parametrize(
    "change",
    [{"kind": "order"}, {"text": 5}, {"token_lengths": ["9"]}, {"token_lengths": 9},
     {"finished": "yes"}, {"version": 1.5}, {"surprise": 1}, {"prompt_id": None},
     {"kind": ["success"]}, {"kind": None}, {"finished": [True]}],
)  # fmt: skip
def test_a_line_of_another_shape_is_malformed(tmp_path, change):
    log = tmp_path / "exchange.jsonl"
    log.write_text(json.dumps(json.loads(SUCCESS.line) | change) + "\n")
    with pytest.raises(MrlError, match="holds no record"):
        read_records(log)
    log.write_text(log.read_text() + STATS.line.decode() + "\n")
    assert read_records(log) == [STATS]


@pytest.mark.parametrize("line", ["[" * 100_000, "7", "null", '"text"', "[]", "{}", "9" * 5000])
def test_a_line_that_is_no_object_is_malformed(tmp_path, line):
    log = tmp_path / "exchange.jsonl"
    log.write_text(f"{line}\n{STATS.line.decode()}\n")
    assert read_records(log) == [STATS]


def test_random_damage_to_a_log_never_raises_and_never_adds_a_record(tmp_path):
    rng = random.Random(0)
    whole = "\n".join(record.line.decode() for record in (SUCCESS, STATS, ROLLOUT)).encode()
    log = tmp_path / "exchange.jsonl"
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        kept = data[: rng.randrange(len(data))]
        log.write_bytes(kept + b"\n" + STATS.line + b"\n")
        records = read_records(log)
        assert 1 <= len(records) <= 4


def test_a_missing_log_gets_one_sentence(tmp_path):
    with pytest.raises(MrlError, match="is not there or holds no"):
        read_records(tmp_path / "none.jsonl")


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
