"""What only a GPU can show. Run by hand: `python -m pytest -n 0 -m gpu`.

`-n 0`, because two parts at once would take each other's time and memory.
"""

import pytest
import torch

from mrl.config import PolicyConfig
from mrl.models.loading import load_policy
from mrl.placement import Allocation
from mrl.samples import Problem
from tests.bench import gpu_session
from tests.test_real_pair import chat_pair

__all__ = ["chat_pair"]  # a fixture
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("part", gpu_session.PARTS)
def test_a_part_of_the_session_is_good(tmp_path, part):
    out = tmp_path / "gpu.json"
    assert gpu_session.main(["--only", part, "--out", str(out)]) == 0, gpu_session.read(out)


def test_what_is_sampled_is_what_is_scored(chat_pair):
    policy = load_policy(
        PolicyConfig("qwen", str(chat_pair / "qwen"), max_new_tokens=16), 0, "cuda"
    )
    (group,) = policy.rollout([Problem("a", "1+1?", "2")], torch.Generator().manual_seed(0))
    scored = policy.logprobs_of([group.prompt_ids] * 8, [r.completion_ids for r in group.rollouts])
    for rollout, logprobs in zip(group.rollouts, scored, strict=True):
        assert rollout.logprobs == pytest.approx(logprobs, abs=0.1)


def test_host_memory_is_pinned_while_a_policy_waits(chat_pair):
    policies = [
        load_policy(PolicyConfig(name, str(chat_pair / name)), n, "cuda")
        for n, name in enumerate(("qwen", "smol"))
    ]
    allocation = Allocation(policies, ["qwen", "smol"], "swap", "cuda")
    with allocation.turn(policies[0], "rollout"):
        assert policies[0].model.device.type == "cuda"
        assert all(p.is_pinned() for p in policies[1].model.parameters())
