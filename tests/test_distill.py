"""data/examples/distill.py: scores of own texts carried between two tokenizers."""

import importlib.util
from itertools import pairwise

import pytest
import torch

from mini_mrl import load_team
from mrl.config import DATA
from mrl.samples import problems_of_step
from tests.test_layout import code_lines

PATH = DATA / "examples" / "distill.py"


@pytest.fixture(scope="module")
def distill():
    spec = importlib.util.spec_from_file_location("distill", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def team():
    return load_team("tiny", mode="solo", seed=1, prompts_per_step=2, group_size=3)


def groups_of(team, policy):
    problems = problems_of_step(team.problems, 1, team.prompts_per_step, team.seed)
    return policy.rollout(problems, torch.Generator().manual_seed(0))


def test_it_is_short():
    assert len(code_lines(PATH)) <= 120


def test_a_policy_has_no_opinion_of_its_own_texts(distill, team):
    policy = team.policies[0]
    for group in groups_of(team, policy):
        for rollout in group.rollouts:
            opinion = distill.peers_opinion(policy, policy, group, rollout)
            if policy.codec.encode(rollout.text) == rollout.content_ids:
                assert opinion.abs().max() < 1e-4


def test_the_opinions_of_all_chunks_add_up_to_the_difference_of_the_whole_text(
    distill, team, monkeypatch
):
    monkeypatch.setattr(distill, "CLAMP", 1e6)
    receiver, peer = team.policies
    for group in groups_of(team, receiver):
        rollout = group.rollouts[0]
        opinion = distill.peers_opinion(receiver, peer, group, rollout)
        content = rollout.content_ids
        prompt = peer.prompt_ids(group.problem.prompt)
        (scores,) = peer.logprobs_of([prompt], [peer.codec.encode(rollout.text)])
        own = rollout.logprobs[: len(content)]

        # a chunk's opinion stands at each of its tokens; neighbours differ
        of_chunks = [float(opinion[0])]
        of_chunks += [
            float(now) for before, now in pairwise(opinion[: len(content)]) if now != before
        ]
        assert sum(of_chunks) == pytest.approx(sum(scores) - sum(own), abs=1e-3)
        assert float(opinion[-1]) == 0 or not rollout.finished  # the end token


def test_it_trains_where_the_gate_opens_and_everywhere(distill, team):
    before = {policy.name: policy.version for policy in team.policies}
    rewards = distill.distill_step(team, 1, beta=0.2, everywhere=True)
    assert all(0 <= reward <= 1 for reward in rewards.values())
    for policy in team.policies:
        assert policy.version > before[policy.name]
        assert all(bool(p.isfinite().all()) for p in policy.model.parameters())
