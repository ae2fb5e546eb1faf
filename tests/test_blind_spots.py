"""What a blind spot is, and when it is closed: one rule for all that shows them."""

import json
from types import SimpleNamespace

import pytest

from mrl.lab import compare_view
from mrl.lab.report import replay_data
from mrl.run.blind_spots import blind_spots, knows
from mrl.run.directory import write_run_config
from mrl.run.summary import learned_sentence
from mrl.run.view import View, console
from mrl.settings.read import run_config

BEFORE = {
    "a": {"days": 0.0, "sold": 0.019, "bags": 0.0, "eats": 0.02, "loses": 0.0},
    "b": {"days": 0.9, "sold": 0.25, "bags": 0.249, "eats": 0.9, "loses": 0.01},
}


def test_a_blind_spot_is_hardly_ever_solved_although_a_peer_knows_the_skill():
    assert blind_spots(BEFORE) == [("a", "days"), ("a", "sold")]
    assert blind_spots(BEFORE, learners={"b"}) == []  # a frozen policy cannot close any
    assert blind_spots({"a": BEFORE["a"]}) == []  # without a peer
    third = {"c": {skill: 0.0 for skill in BEFORE["a"]} | {"bags": 0.3}}
    assert ("a", "bags") in blind_spots(BEFORE | third)
    assert [knows(rate) for rate in (0.249, 0.25)] == [False, True]


@pytest.fixture
def evaluations():
    def entries(rates):
        return [
            {
                "policy": policy, "split": "validation", "problems": 5, "samples": 1, "pass@1": 0,
                "skills": {s: {"pass@1": rate, "problems": 1} for s, rate in of_policy.items()},
            }
            for policy, of_policy in rates.items()
        ]  # fmt: skip

    after = {"a": {"days": 0.25, "sold": 0.24, "bags": 0.9, "eats": 0.9, "loses": 0.0}}
    return {"before": entries(BEFORE), "after": entries(BEFORE | after)}


def test_sentence_view_report_and_comparison_agree(tmp_path, evaluations):
    log = [
        {"step": 1, "policy": name, "updates": 1, "reward": 0, "imitated": 0, "rescues": 0}
        for name in "ab"
    ]
    sentence = learned_sentence(evaluations, log)
    closed, _, left = sentence.partition("Not closed")
    assert "`days`" in closed and "`sold`" in left
    assert not any(f"`{skill}`" in sentence for skill in ("bags", "eats", "loses"))

    view = View(console, ["a", "b"], 1)
    view.scored(evaluations["before"])
    assert view.blind_spots == {("a", "days"), ("a", "sold")}

    config = run_config("tiny", None, {}, [])
    for policy, name in zip(config.policies, "ab", strict=True):
        policy.name = name
    write_run_config(tmp_path, config)
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluations))
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, log)))
    of_a, of_b = replay_data(tmp_path)["policies"]
    assert (of_a["blind_spots"], of_a["closed"]) == (["days", "sold"], ["days"])
    assert (of_b["blind_spots"], of_b["closed"]) == ([], [])

    def percents(entries):
        return {
            ("validation", entry["policy"], skill, "pass@1"): 100 * scores["pass@1"]
            for entry in entries
            for skill, scores in entry["skills"].items()
        }

    before, after = (percents(evaluations[when]) for when in ("before", "after"))
    result = SimpleNamespace(before=before, scores=after, lines=log, first_split="validation")
    spots = compare_view.blind_spots_of([result])
    assert spots == [("a", "days"), ("a", "sold")]
    assert [compare_view.is_closed(result, spot) for spot in spots] == [True, False]
