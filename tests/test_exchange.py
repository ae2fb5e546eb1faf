import json
import math
from dataclasses import replace

import pytest

from mrl.alignment import LossyText
from mrl.exchange import MAX_PER_PROMPT, MAX_TEXT_BYTES, Exchange
from mrl.records import RewardStats, RolloutRecord, SuccessRecord
from tests.test_records import ROLLOUT, STATS, SUCCESS


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


# ------------------------------------------------------------------------------ the log, as a peer


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
