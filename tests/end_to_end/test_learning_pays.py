"""Learning really happens: the tiny pair, the real loop, fewer steps than the default."""

import json

import pytest

import mini_mrl

STEPS = 100


def mean_score(path, when):
    """Held-out pass@1, averaged over policies and skills."""
    scores = json.loads(path.read_text())[when]
    chosen = [entry["pass@1"] for entry in scores if entry["part"] == "heldout"]
    return sum(chosen) / len(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_sgt_raises_the_held_out_score_of_the_tiny_pair(tmp_path, monkeypatch, seed):
    """Measured after 100 steps: +22 to +27 points over these seeds; half of that must be there."""
    monkeypatch.chdir(tmp_path)
    arguments = ["--mode", "sgt", "--steps", str(STEPS), "--seed", str(seed), "--name", "r"]
    assert mini_mrl.main(arguments) == 0
    path = tmp_path / "runs" / "r" / "evaluation.json"
    assert mean_score(path, "after") - mean_score(path, "before") > 0.12
    metrics = (tmp_path / "runs" / "r" / "metrics.jsonl").read_text().splitlines()
    sizes = [json.loads(line)["groups/all_fail"] for line in metrics]
    assert sum(sizes[-20:]) < 0.7 * sum(sizes[:20])  # the hole that sharing fills gets smaller
