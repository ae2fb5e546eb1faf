import json
import math
from dataclasses import replace

import pytest

from mrl.alignment import LossyText
from mrl.exchange import Exchange
from mrl.records import Record, RewardStats, RolloutRecord, SuccessRecord
from tests.test_records import ROLLOUT, STATS, SUCCESS


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (replace(SUCCESS, verdict="wrong"), "unverified"),
        (replace(SUCCESS, verdict=""), "unverified"),
        (replace(ROLLOUT, verdict="correct"), "unverified"),
        (replace(ROLLOUT, reward=1.0), "unverified"),
        (replace(ROLLOUT, reward=math.nan), "unverified"),
        (replace(STATS, mean=math.nan), "bad_number"),
        (replace(STATS, std=math.inf), "bad_number"),
        (replace(ROLLOUT, logprobs=(-1.0, -math.inf, 0.0)), "bad_number"),
        (replace(ROLLOUT, logprobs=(-1.0, math.nan, 0.0)), "bad_number"),
        (replace(ROLLOUT, end_logprob=math.nan), "bad_number"),
        (replace(ROLLOUT, logprobs=(-1.0, 0.1, 0.0)), "bad_number"),
        (replace(ROLLOUT, logprobs=(-1.0, -1e308, 0.0)), "bad_number"),
        (replace(STATS, mean=1.5), "bad_number"),
        (replace(STATS, count=0), "bad_number"),
        (replace(ROLLOUT, token_lengths=(1, 2)), "wrong_trace"),
        (replace(ROLLOUT, token_lengths=(1, 1, 3)), "wrong_trace"),
        (replace(SUCCESS, token_lengths=(len(SUCCESS.text) + 1, -1)), "wrong_trace"),
        (replace(ROLLOUT, logprobs=(-1.0,)), "wrong_trace"),
        (replace(ROLLOUT, end_logprob=None), "wrong_trace"),
        (replace(ROLLOUT, finished=False), "wrong_trace"),
        (replace(SUCCESS, token_lengths=(10,)), "wrong_trace"),
        (replace(SUCCESS, text="\ud800", token_lengths=(3,)), "wrong_trace"),
        (replace(SUCCESS, source="b"), "wrong_source"),  # in the receiver's own name
        (replace(STATS, source=""), "wrong_source"),
        (LossyText("not_utf8"), "not_utf8"),
    ],
)
def test_what_is_not_sound_is_refused_and_counted(record, reason):
    exchange = Exchange()
    assert exchange.publish(record, "a") == reason
    assert exchange.collect(type(record), "b", ["p"]) == {"p": []}
    traffic = exchange.take_traffic("a")
    assert (traffic["exchange/published_records"], traffic[f"exchange/refused/{reason}"]) == (0, 1)


@pytest.mark.parametrize(
    "record",
    [
        STATS,
        ROLLOUT,
        SUCCESS,
        replace(ROLLOUT, finished=False, end_logprob=None),
        replace(ROLLOUT, end_logprob=0.0),
        replace(ROLLOUT, reward=1.0, verdict="correct"),
    ],
)
def test_what_is_sound_is_taken(record):
    exchange = Exchange()
    assert exchange.publish(record, "a") is None
    assert exchange.collect(type(record), "b", ["p"]) == {"p": [record]}


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


def test_records_and_bytes_are_counted_by_source_and_receiver():
    exchange = Exchange()
    exchange.publish(SUCCESS, "a")
    exchange.publish(STATS, "a")
    exchange.collect(SuccessRecord, "b", ["p"])
    sent, received = exchange.take_traffic("a"), exchange.take_traffic("b")
    lines = [record.line for record in exchange.records]
    assert [json.loads(line)["kind"] for line in lines] == ["success", "rewards"]
    size = len(lines[0])
    assert sent["exchange/published_records"] == 2
    assert sent["exchange/published_bytes"] == sum(map(len, lines))
    assert received["exchange/received_records"] == 1  # of the type that was asked for
    assert received["exchange/received_bytes"] == size


def test_only_records_of_exactly_the_wanted_type_are_handed_out():
    """A mode that asks for the base class would otherwise get every type."""
    exchange = Exchange()
    exchange.publish(SUCCESS, "a")
    exchange.publish(STATS, "a")
    assert exchange.collect(Record, "b", [SUCCESS.prompt_id])[SUCCESS.prompt_id] == []
    assert exchange.collect(SuccessRecord, "b", [SUCCESS.prompt_id]) == {"p": [SUCCESS]}


def test_traffic_is_handed_out_once_by_policy():
    exchange = Exchange()
    exchange.publish(SUCCESS, "a")
    exchange.publish(replace(SUCCESS, verdict="wrong"), "a")
    exchange.collect(SuccessRecord, "b", ["p"])
    exchange.count_not_confirmed("b", 1)
    size = len(SUCCESS.line)
    assert exchange.take_traffic("a") == {
        "exchange/published_records": 1,
        "exchange/published_bytes": size,
        "exchange/received_records": 0,
        "exchange/received_bytes": 0,
        "exchange/refused/unverified": 1,
    }
    traffic = exchange.take_traffic("b")
    # received all the same: that is the price of a record
    assert (traffic["exchange/received_bytes"], traffic["exchange/not_confirmed"]) == (size, 1)
    assert set(exchange.take_traffic("a").values()) == {0}


def test_the_order_of_sources_is_that_of_their_names_whichever_came_first():
    """In a resumed run others may come first."""
    for names in ("abcdefgh", "hgfedcba"):
        exchange = Exchange()
        for name in names:
            assert exchange.publish(replace(SUCCESS, source=name), name) is None
        records = exchange.collect(SuccessRecord, "b", ["p"])["p"]
        assert [record.source for record in records] == list("acdefgh")
