import json
import math
from dataclasses import replace

import pytest

from mrl.alignment import LossyText
from mrl.exchange import Exchange
from mrl.records import (
    LEAST_LOGPROB,
    MAX_GROUP,
    MAX_RECORD_BYTES,
    Record,
    RewardStats,
    RolloutRecord,
    SuccessRecord,
)
from tests.test_records import ROLLOUT, STATS, SUCCESS


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (replace(SUCCESS, verdict="wrong"), "unverified"),
        (replace(SUCCESS, verdict=""), "unverified"),
        (replace(SUCCESS, source="b"), "foreign_source"),
        (replace(SUCCESS, version=-1), "out_of_range"),
        (replace(SUCCESS, version=10**5000), "out_of_range"),
        (replace(SUCCESS, version="0"), "malformed"),
        (replace(SUCCESS, index=-1), "out_of_range"),
        (replace(SUCCESS, index=MAX_GROUP), "out_of_range"),
        (replace(SUCCESS, text="x" * 2**22, token_lengths=(2**22,)), "too_long"),
        (replace(SUCCESS, prompt_id="p" * MAX_RECORD_BYTES), "too_long"),
        (replace(ROLLOUT, logprobs=(-1.0,) * MAX_RECORD_BYTES), "too_long"),
        (replace(SUCCESS, prompt_id="\ud800"), "not_utf8"),
        (replace(SUCCESS, answer="\ud800"), "not_utf8"),
        (replace(STATS, prompt_id="p\udfff"), "not_utf8"),
        (replace(STATS, mean=math.nan), "out_of_range"),
        (replace(STATS, std=math.inf), "out_of_range"),
        (replace(STATS, std=10**400), "out_of_range"),
        (replace(STATS, std=-0.1), "out_of_range"),
        (replace(STATS, std=0.4331), "out_of_range"),  # 0, 0, 0, 1 have a std of 0.43301...
        (replace(STATS, mean=1.0), "out_of_range"),  # and this has none
        (replace(STATS, count=0), "out_of_range"),
        (replace(STATS, count=MAX_GROUP + 1), "out_of_range"),
        (replace(STATS, count=4.0), "malformed"),
        (replace(STATS, count=True), "malformed"),
        (replace(STATS, mean=True, std=0.0), "malformed"),
        (replace(STATS, index=1), "out_of_range"),
        (replace(STATS, mean=1.5), "out_of_range"),
        (replace(STATS, mean=-0.1, std=0.0), "out_of_range"),
        (replace(ROLLOUT, logprobs=(-1.0, -math.inf, 0.0)), "out_of_range"),
        (replace(ROLLOUT, logprobs=(-1.0, -1e308, 0.0)), "out_of_range"),
        (replace(ROLLOUT, logprobs=(-1.0, -(10**400), 0.0)), "out_of_range"),
        (replace(ROLLOUT, logprobs=(-1.0, 2 * LEAST_LOGPROB, 0.0)), "out_of_range"),
        (replace(ROLLOUT, logprobs=[-1.0, -2.0, -0.5]), "malformed"),
        (replace(ROLLOUT, end_logprob=math.nan), "out_of_range"),
        (replace(ROLLOUT, reward=10**5000), "out_of_range"),
        (replace(ROLLOUT, verdict="maybe"), "unverified"),
        (replace(ROLLOUT, reward=1.0), "unverified"),
        (replace(ROLLOUT, token_lengths=(1, 1)), "wrong_trace"),
        (replace(ROLLOUT, end_logprob=None), "wrong_trace"),
        (replace(ROLLOUT, finished=False), "wrong_trace"),
        (replace(ROLLOUT, end_logprob=0.5), "out_of_range"),
        (replace(ROLLOUT, token_lengths=(1, 1, 3)), "not_round_trippable"),
        (replace(SUCCESS, token_lengths=(10, -1)), "out_of_range"),
        (replace(SUCCESS, token_lengths=(10**5000,)), "out_of_range"),
        (replace(SUCCESS, text="\\boxed{\ud800}"), "not_utf8"),
        (LossyText("not_utf8"), "not_utf8"),
    ],
)
def test_what_is_not_sound_is_refused_and_counted(record, reason):
    exchange = Exchange()
    assert exchange.publish(record, "a") == reason
    if isinstance(record, Record) and reason != "foreign_source":
        exchange.store([record])
    assert exchange.collect(type(record), "b", ["p"]) == {"p": []}
    traffic = exchange.take_traffic("a")
    assert (traffic["exchange/published_records"], traffic[f"exchange/refused/{reason}"]) == (0, 1)


@pytest.mark.parametrize(
    "record",
    [
        replace(STATS, count=MAX_GROUP, mean=0.5, std=0.5),
        replace(STATS, count=1, mean=1, std=0),
        *(
            replace(STATS, count=g, mean=k / g, std=math.sqrt((k / g) * (1 - k / g)))
            for g in (2, 3, 7, 64, 1000)
            for k in range(0, g + 1, max(1, g // 7))
        ),
        replace(ROLLOUT, logprobs=(-0.0, 0.0, LEAST_LOGPROB)),
        replace(ROLLOUT, finished=False, end_logprob=None),
        replace(ROLLOUT, reward=1, verdict="correct"),
        replace(SUCCESS, index=MAX_GROUP - 1, version=2**53),
    ],
)
def test_what_is_just_sound_is_taken(record):
    assert Exchange().publish(record, "a") is None
    assert Exchange().publish(type(record).from_json(record.line), "a") is None


def test_a_group_is_as_large_as_the_largest_that_is_configured():
    exchange = Exchange(largest_group=4)
    assert exchange.publish(replace(SUCCESS, index=3), "a") is None
    assert exchange.publish(replace(SUCCESS, index=4), "a") == "out_of_range"
    assert exchange.publish(replace(STATS, count=5), "a") == "out_of_range"
    assert exchange.publish(STATS, "a") is None
    assert exchange.publish(replace(STATS, mean=0.5), "a") == "duplicate"  # one a group
    exchange.store([replace(STATS, source="c", count=64, std=0.0)])  # of a run with larger groups
    assert len(exchange.collect(RewardStats, "b", ["p"])["p"]) == 2


def test_of_a_source_and_prompt_the_newest_version_counts():
    """As in the log of a run with several epochs, whatever the order there."""
    old, new = ([replace(ROLLOUT, version=v, index=i) for i in (0, 1)] for v in (3, 4))
    other = replace(ROLLOUT, prompt_id="q", version=3)
    live = Exchange()
    assert not any(live.publish(record, "a") for record in (*old, other, new[0]))
    assert live.collect(RolloutRecord, "b", ["p", "q"]) == {"p": new[:1], "q": [other]}
    assert live.publish(new[1], "a") is None
    assert live.publish(replace(old[0], index=5), "a") == "stale"  # one version a group
    stored, backwards = Exchange(), Exchange()
    stored.store([*old, other, *new])
    backwards.store([*new, other, *old])
    for exchange in (live, stored, backwards):
        assert exchange.collect(RolloutRecord, "b", ["p", "q"]) == {"p": new, "q": [other]}


def test_a_live_policy_stands_in_front_of_its_stored_self():
    exchange = Exchange()
    exchange.store([replace(SUCCESS, version=9), replace(SUCCESS, version=9, source="c")])
    assert exchange.publish(SUCCESS, "a") is None
    got = exchange.collect(SuccessRecord, "b", ["p"])["p"]
    assert got == [SUCCESS, replace(SUCCESS, version=9, source="c")]


def test_the_same_record_twice_is_refused_another_sample_of_the_same_text_is_not():
    exchange = Exchange()
    assert exchange.publish(SUCCESS, "a") is None
    assert exchange.publish(SUCCESS, "a") == "duplicate"
    assert exchange.publish(replace(SUCCESS, index=1), "a") is None


def test_collect_gives_the_declared_type_never_the_own_and_only_the_asked_prompts():
    exchange = Exchange()
    for record in (SUCCESS, STATS, ROLLOUT, replace(SUCCESS, prompt_id="q")):
        assert exchange.publish(record, "a") is None
    assert exchange.publish(replace(SUCCESS, source="b"), "b") is None
    assert exchange.collect(SuccessRecord, "b", ["p", "r"]) == {"p": [SUCCESS], "r": []}
    assert exchange.collect(RewardStats, "b", ["p"]) == {"p": [STATS]}
    assert exchange.collect(RolloutRecord, "b", ["p"]) == {"p": [ROLLOUT]}
    assert exchange.collect(None, "b", ["p"]) == {"p": []}
    third = exchange.collect(SuccessRecord, "c", ["p"])["p"]
    assert [record.source for record in third] == ["a", "b"]


def test_a_record_lives_for_one_step_and_none_is_older_than_its_source():
    exchange = Exchange()
    assert exchange.publish(SUCCESS, "a") is None
    exchange.end_step({"a": 1})
    assert exchange.collect(SuccessRecord, "b", ["p"])["p"] == []
    assert exchange.publish(SUCCESS, "a") == "stale"
    assert exchange.publish(replace(SUCCESS, prompt_id="q"), "a") == "stale"
    for _ in range(2):  # no update between two steps
        new = replace(SUCCESS, version=1)
        assert exchange.publish(new, "a") is None
        assert exchange.collect(SuccessRecord, "b", ["p"])["p"] == [new]
        exchange.end_step({"a": 1})


def test_records_and_bytes_are_counted_per_type_source_and_receiver(tmp_path):
    exchange = Exchange(tmp_path / "exchange.jsonl")
    exchange.publish(SUCCESS, "a")
    exchange.publish(STATS, "a")
    exchange.collect(SuccessRecord, "b", ["p"])
    sent, got = exchange.take_traffic("a"), exchange.take_traffic("b")
    exchange.close()
    lines = (tmp_path / "exchange.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["success", "rewards"]
    size = len(lines[0].encode())
    assert sent["exchange/published_records"] == 2
    assert sent["exchange/published_bytes"] == sum(len(line.encode()) for line in lines)
    assert got["exchange/success/a/records"] == got["exchange/received_records"] == 1
    assert got["exchange/success/a/bytes"] == got["exchange/received_bytes"] == size


def test_traffic_is_handed_out_once_by_policy():
    exchange = Exchange()
    exchange.publish(SUCCESS, "a")
    exchange.publish(replace(SUCCESS, verdict="wrong"), "a")
    exchange.collect(SuccessRecord, "b", ["p"], believes=lambda record: False)
    size = len(SUCCESS.line)
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


@pytest.mark.parametrize("version", [0, 10**9])  # a version from the future is never stale
def test_a_flood_is_bounded_counted_and_keeps_nobody_else_out(version):
    exchange, taken = Exchange(largest_group=16), 0
    for step in range(20):
        for number in range(1000):
            record = replace(SUCCESS, source="b", version=version + step, index=number % 40)
            taken += exchange.publish(record, "b") is None
        assert exchange.publish(replace(SUCCESS, version=step), "a") is None
        found = exchange.collect(SuccessRecord, "c", ["p"])["p"]
        assert [record.source for record in found] == ["a"] + 16 * ["b"]
        exchange.end_step({"a": step + 1, "b": step + 1})
    assert taken == 20 * 16
    flooded = exchange.take_traffic("b")
    assert sum(n for name, n in flooded.items() if "refused/" in name) == 20_000 - taken
    assert not any("refused/" in name for name in exchange.take_traffic("a"))


def test_one_source_speaks_about_only_so_many_prompts(monkeypatch):
    monkeypatch.setattr("mrl.exchange.MAX_PROMPTS", 3)
    exchange = Exchange()
    about = [replace(SUCCESS, prompt_id=str(number)) for number in range(9)]
    assert [exchange.publish(record, "a") for record in about] == [None] * 3 + ["flood"] * 6
    assert exchange.publish(replace(about[0], index=1), "a") is None  # of those, everything
    assert exchange.publish(replace(about[0], version=1), "a") is None
    assert exchange.publish(replace(about[8], source="b"), "b") is None
    exchange.end_step({})  # there is room again
    assert exchange.publish(replace(about[8], version=5), "a") is None
    exchange.end_step({})
    exchange.store(about)  # of a finished run, whose file is there to be read whole
    assert all(exchange.collect(SuccessRecord, "c", map(str, range(8))).values())


def test_what_a_log_was_given_is_in_the_file_after_a_flush_and_appended_to_by_the_next(tmp_path):
    path = tmp_path / "exchange.jsonl"
    for source in ("a", "b"):
        exchange = Exchange(path)
        exchange.publish(replace(SUCCESS, source=source), source)
        exchange.publish(replace(SUCCESS, source=source, verdict="wrong"), source)
        exchange.flush()
        assert path.read_bytes().splitlines()[-1] == replace(SUCCESS, source=source).line
        exchange.close()
    assert len(path.read_bytes().splitlines()) == 2


def test_the_order_of_sources_is_that_of_their_names_whoever_came_first():
    """In a resumed run others may come first."""
    for names in ("abcdefgh", "hgfedcba"):
        exchange = Exchange()
        for name in names:
            assert exchange.publish(replace(SUCCESS, source=name), name) is None
        found = exchange.collect(SuccessRecord, "b", ["p"])["p"]
        assert [record.source for record in found] == list("acdefgh")


def test_stored_records_stand_in_for_a_live_peer_and_are_never_stale():
    exchange = Exchange()
    lie = replace(SUCCESS, verdict="wrong", index=1)
    exchange.store([SUCCESS, lie, replace(SUCCESS, prompt_id="q")])
    for _ in range(2):  # in every epoch
        exchange.end_step({"a": 50})
        assert exchange.collect(SuccessRecord, "b", ["p"]) == {"p": [SUCCESS]}
    assert exchange.collect(SuccessRecord, "a", ["p"]) == {"p": []}  # its own, of another run
    assert exchange.take_traffic("b")["exchange/received_records"] == 2


def test_what_the_receiver_does_not_believe_is_counted_and_kept_from_the_mode():
    exchange = Exchange()
    exchange.publish(SUCCESS, "a")
    exchange.publish(replace(SUCCESS, text="\\boxed{2}", index=1), "a")
    got = exchange.collect(SuccessRecord, "b", ["p"], lambda record: "{1}" in record.text)
    assert got == {"p": [SUCCESS]}
    traffic = exchange.take_traffic("b")
    assert traffic["exchange/not_believed"] == 1
    assert traffic["exchange/received_records"] == 2  # all the same: that is its price
