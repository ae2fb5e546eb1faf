import json
import math
import random
from dataclasses import replace

import pytest

from mrl.alignment import LossyText
from mrl.errors import MrlError
from mrl.exchange import (
    MAX_PER_PROMPT,
    MAX_TEXT_BYTES,
    Exchange,
    Record,
    RewardStats,
    RolloutRecord,
    SuccessRecord,
    make_records,
    read_log,
)
from mrl.rewards import Verdict
from mrl.samples import Group, Rollout
from mrl.tasks import Problem

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
    exchange = Exchange()
    for record in make_records(SuccessRecord, "a", 0, [group], codec):
        assert not exchange.publish(record, "a")
    assert exchange.refused == {("a", "not_utf8"): 1}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (replace(SUCCESS, verdict="wrong"), "unverified"),
        (replace(SUCCESS, verdict=""), "unverified"),
        (replace(SUCCESS, source="b"), "foreign_source"),
        (replace(SUCCESS, version=-2), "stale"),
        (
            replace(SUCCESS, text="x" * (MAX_TEXT_BYTES + 1), token_lengths=(MAX_TEXT_BYTES + 1,)),
            "too_long",
        ),
        (replace(STATS, mean=math.nan), "unverified"),
        (replace(STATS, std=math.inf), "not_finite"),
        (replace(STATS, count=0), "unverified"),
        (replace(STATS, mean=1.5), "unverified"),
        (replace(ROLLOUT, logprobs=(-1.0, -math.inf, 0.0)), "not_finite"),
        (replace(ROLLOUT, end_logprob=math.nan), "not_finite"),
        (replace(ROLLOUT, verdict="maybe"), "unverified"),
        (replace(ROLLOUT, reward=1.0), "unverified"),
        (replace(ROLLOUT, token_lengths=(1, 1)), "wrong_trace"),
        (replace(ROLLOUT, end_logprob=None), "wrong_trace"),
        (replace(ROLLOUT, finished=False), "wrong_trace"),
        (replace(ROLLOUT, end_logprob=0.5), "wrong_trace"),
        (replace(ROLLOUT, token_lengths=(1, 1, 3)), "not_round_trippable"),
        (replace(SUCCESS, token_lengths=(10, -1)), "not_round_trippable"),
        (replace(SUCCESS, text="\\boxed{\ud800}"), "not_round_trippable"),
        (LossyText("not_utf8"), "not_utf8"),
    ],
)
def test_what_is_not_sound_is_refused_and_counted(record, reason):
    exchange = Exchange()
    assert not exchange.publish(record, "a")
    assert exchange.refused == {("a", reason): 1}
    assert exchange.collect(SuccessRecord, "b", ["p"]) == {"p": []}
    assert not exchange.published


def test_the_same_record_twice_is_refused_another_sample_of_the_same_text_is_not():
    exchange = Exchange()
    assert exchange.publish(SUCCESS, "a")
    assert not exchange.publish(SUCCESS, "a")
    assert exchange.publish(replace(SUCCESS, index=1), "a")
    assert exchange.refused == {("a", "duplicate"): 1}


def test_collect_gives_the_declared_type_never_the_own_and_only_the_asked_prompts():
    exchange = Exchange()
    for record in (SUCCESS, STATS, ROLLOUT, replace(SUCCESS, prompt_id="q")):
        assert exchange.publish(record, "a")
    assert exchange.publish(replace(SUCCESS, source="b"), "b")
    assert exchange.collect(SuccessRecord, "b", ["p", "r"]) == {"p": [SUCCESS], "r": []}
    assert exchange.collect(RewardStats, "b", ["p"]) == {"p": [STATS]}
    assert exchange.collect(RolloutRecord, "b", ["p"]) == {"p": [ROLLOUT]}
    assert exchange.collect(None, "b", ["p"]) == {"p": []}
    third = exchange.collect(SuccessRecord, "c", ["p"])["p"]
    assert [record.source for record in third] == ["a", "b"]


def test_what_is_older_than_max_staleness_is_dropped():
    exchange = Exchange(max_staleness=1)
    exchange.publish(SUCCESS, "a")
    exchange.advance("a", 1)
    assert exchange.collect(SuccessRecord, "b", ["p"])["p"] == [SUCCESS]
    exchange.advance("a", 2)
    assert exchange.collect(SuccessRecord, "b", ["p"])["p"] == []
    assert not exchange.publish(SUCCESS, "a")
    assert exchange.refused["a", "stale"] == 1


def test_records_and_bytes_are_counted_per_type_source_and_receiver(tmp_path):
    exchange = Exchange(tmp_path / "exchange.jsonl")
    exchange.publish(SUCCESS, "a")
    exchange.publish(STATS, "a")
    exchange.collect(SuccessRecord, "b", ["p"])
    exchange.close()
    lines = (tmp_path / "exchange.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["success", "rewards"]
    size = len(lines[0].encode())
    assert exchange.published == {("success", "a"): 1, ("rewards", "a"): 1}
    assert exchange.published_bytes["success", "a"] == size
    assert exchange.delivered == {("a", "b"): 1}
    assert exchange.delivered_bytes == {("a", "b"): size}


def test_traffic_is_handed_out_once_by_policy():
    exchange = Exchange()
    exchange.publish(SUCCESS, "a")
    exchange.publish(replace(SUCCESS, verdict="wrong"), "a")
    exchange.collect(SuccessRecord, "b", ["p"], believes=lambda record: False)
    size = len(SUCCESS.to_json().encode())
    assert exchange.take_traffic("a") == {
        "exchange/published_records": 1,
        "exchange/published_bytes": size,
        "exchange/received_records": 0,
        "exchange/received_bytes": 0,
        "exchange/refused/unverified": 1,
    }
    got = exchange.take_traffic("b")
    assert (got["exchange/received_bytes"], got["exchange/not_believed"]) == (size, 1)
    assert set(exchange.take_traffic("a").values()) == {0}


def test_value_level_is_far_cheaper_than_data_level(group):
    group, codec = group
    price = {
        kind: sum(len(record.to_json()) for record in make_records(kind, "a", 0, [group], codec))
        for kind in (RewardStats, SuccessRecord, RolloutRecord)
    }
    assert price[RewardStats] < price[SuccessRecord] < price[RolloutRecord]


# ------------------------------------------------------------------------------ the log, as a peer


@pytest.mark.parametrize("record", [SUCCESS, STATS, ROLLOUT, replace(ROLLOUT, end_logprob=None)])
def test_a_record_comes_back_from_its_line_as_it_was(record):
    assert Record.from_json(record.to_json()) == record


def test_a_log_is_read_past_a_torn_last_line_and_past_broken_ones(tmp_path):
    lines = [record.to_json() for record in (SUCCESS, STATS, ROLLOUT)]
    log = tmp_path / "exchange.jsonl"
    log.write_text("\n".join([lines[0], "{nonsense", lines[1], lines[2], lines[0][:40]]))
    assert read_log(log) == ([SUCCESS, STATS, ROLLOUT], {"malformed": 1, "torn": 1})


@pytest.mark.parametrize(
    "change",
    [{"kind": "order"}, {"text": 5}, {"token_lengths": ["9"]}, {"token_lengths": 9},
     {"finished": "yes"}, {"version": 1.5}, {"surprise": 1}, {"prompt_id": None}],
)  # fmt: skip
def test_a_line_of_another_shape_is_malformed(tmp_path, change):
    log = tmp_path / "exchange.jsonl"
    log.write_text(json.dumps(json.loads(SUCCESS.to_json()) | change) + "\n")
    with pytest.raises(MrlError, match="holds no record"):
        read_log(log)
    log.write_text(log.read_text() + STATS.to_json() + "\n")
    assert read_log(log) == ([STATS], {"malformed": 1})


@pytest.mark.parametrize("version", [0, 10**9])  # a version from the future is never stale
def test_a_flood_is_bounded_counted_and_keeps_nobody_else_out(version):
    exchange = Exchange()
    for step in range(20):
        for number in range(1000):
            told = replace(SUCCESS, source="b", version=version + step, index=1000 * step + number)
            exchange.publish(told, "b")
        assert exchange.publish(replace(SUCCESS, version=step), "a")
        held = sum(record.source == "b" for record in exchange._window)
        assert held == MAX_PER_PROMPT
        found = exchange.collect(SuccessRecord, "c", ["p"])["p"]
        assert sum(record.source == "a" for record in found) == min(step + 1, 2)  # two versions
        for name in ("a", "b"):
            exchange.advance(name, step + 1)
    assert exchange.published["success", "b"] + exchange.refused["b", "flood"] == 20_000
    assert not exchange.refused["a", "flood"]


def test_one_source_holds_only_so_many_bytes(monkeypatch):
    monkeypatch.setattr("mrl.exchange.MAX_LIVE_BYTES", 1000)
    exchange = Exchange()
    taken = sum(
        exchange.publish(replace(SUCCESS, prompt_id=str(number)), "a") for number in range(100)
    )
    size = len(replace(SUCCESS, prompt_id="10").to_json())
    assert 1000 / size <= taken <= 1000 / size + 2
    exchange.advance("a", 5)  # all are stale now, there is room again
    assert exchange.publish(replace(SUCCESS, version=5), "a")


def test_the_log_has_a_largest_size_and_what_does_not_fit_is_counted(tmp_path, monkeypatch):
    line = len(SUCCESS.to_json()) + 1
    monkeypatch.setattr("mrl.exchange.MAX_LOG_BYTES", 3 * line)
    for published, counted in ((2, 0), (2, 1)):  # the second exchange goes on with the same file
        exchange = Exchange(tmp_path / "exchange.jsonl")
        for number in range(published):
            assert exchange.publish(replace(SUCCESS, index=number), "a")
        assert exchange.take_traffic("a").get("exchange/not_logged", 0) == counted
        exchange.close()
    assert (tmp_path / "exchange.jsonl").stat().st_size == 3 * line


def test_random_damage_to_a_log_never_raises_and_never_adds_a_record(tmp_path):
    rng = random.Random(0)
    whole = "\n".join(record.to_json() for record in (SUCCESS, STATS, ROLLOUT)).encode()
    log = tmp_path / "exchange.jsonl"
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        kept = data[: rng.randrange(len(data))]
        log.write_bytes(kept + b"\n" + STATS.to_json().encode() + b"\n")
        records, _ = read_log(log)
        assert 1 <= len(records) <= 4


def test_a_missing_log_gets_one_sentence(tmp_path):
    with pytest.raises(MrlError, match="cannot be read"):
        read_log(tmp_path / "none.jsonl")


def test_stored_records_stand_in_for_a_live_peer_and_are_never_stale():
    exchange = Exchange(max_staleness=0)
    exchange.store([SUCCESS, replace(SUCCESS, verdict="wrong"), replace(SUCCESS, prompt_id="q")])
    exchange.advance("a", 50)
    for _ in range(2):  # in every epoch
        assert exchange.collect(SuccessRecord, "b", ["p"]) == {"p": [SUCCESS]}
    assert exchange.collect(SuccessRecord, "a", ["p"]) == {"p": []}  # its own, of another run
    assert exchange.refused == {("a", "unverified"): 1}
    assert exchange.delivered == {("a", "b"): 2}


def test_what_the_receiver_does_not_believe_is_counted_and_kept_from_the_mode():
    exchange = Exchange()
    exchange.publish(SUCCESS, "a")
    exchange.publish(replace(SUCCESS, text="\\boxed{2}", index=1), "a")
    got = exchange.collect(SuccessRecord, "b", ["p"], lambda record: "{1}" in record.text)
    assert got == {"p": [SUCCESS]}
    assert exchange.refused == {("a", "false_claim"): 1}
    assert exchange.delivered["a", "b"] == 2  # it was sent all the same: that is its price


def test_the_window_goes_through_a_checkpoint_without_being_counted_twice():
    one, two = Exchange(), Exchange()
    one.publish(SUCCESS, "a")
    two.restore_window(one.window())
    assert two.collect(SuccessRecord, "b", ["p"]) == {"p": [SUCCESS]}
    assert not two.published
    assert not two.publish(SUCCESS, "a")  # and a duplicate is still one
