"""What only a GPU can show. Run by hand: `python -m pytest -m gpu`."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mrl.allocation import Allocation
from mrl.config import PolicyConfig, RunConfig
from mrl.experiment.memory import estimate, needed
from mrl.learning import learn
from mrl.policy import Policy
from mrl.samples import Problem, TrainingSample
from tests.test_real_pair import chat_pair, chat_tokenizer

__all__ = ["chat_pair"]  # a fixture
pytestmark = pytest.mark.gpu

TRUE = {  # the configurations of Qwen2.5-0.5B-Instruct and SmolLM2-360M-Instruct
    "qwen": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
            num_attention_heads=14, num_key_value_heads=2, rope_theta=1e6, rms_norm_eps=1e-6,
            tie_word_embeddings=True, max_position_embeddings=32768,
        )
    ),
    "smol": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152, hidden_size=960, intermediate_size=2560, num_hidden_layers=32,
            num_attention_heads=15, num_key_value_heads=5, rope_theta=1e5,
            tie_word_embeddings=True, max_position_embeddings=8192,
        )
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def true_pair(tmp_path_factory):
    """Random weights of the true shapes, with tokenizers of the kind."""
    directory = tmp_path_factory.mktemp("true")
    tokenizer = chat_tokenizer(400, ["12 nuts and 3 more"], eos_token="<|im_end|>",
                               pad_token="<|endoftext|>")  # fmt: skip
    for name, make in TRUE.items():
        torch.manual_seed(0)
        make().save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)
    return directory


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("placement", ["resident", "swap"])
def test_the_memory_estimate_of_the_true_pair_holds(true_pair, placement, checkpointing):
    settings = {"max_new_tokens": 400, "micro_batch": 8192, "checkpointing": checkpointing}
    policies = [
        Policy(PolicyConfig(name, str(true_pair / name), **settings), number, "cuda")
        for number, name in enumerate(TRUE)
    ]
    config = RunConfig([policy.config for policy in policies], prompts_per_step=16)
    rows = [estimate(policy, config, prompt_tokens=200) for policy in policies]
    allocation = Allocation(policies, list(TRUE), placement, "cuda")
    torch.cuda.reset_peak_memory_stats()
    problems = [Problem(str(n), "1" * 150 + f"{n}?", "1") for n in range(16)]
    for policy in policies:
        with allocation.turn(policy, "learn"):
            groups = policy.rollout(problems, torch.Generator().manual_seed(0))
            samples = [
                TrainingSample(g.prompt_ids, r.completion_ids, "policy", (-1.0) ** i, r.logprobs)
                for g in groups
                for i, r in enumerate(g.rollouts)
            ]
            learn(policy, samples)
            learn(policy, samples)  # with the optimizer's state in place
            assert policy.version == 2
    peak = torch.cuda.max_memory_allocated()
    expected = needed(rows, placement)
    print(f"{placement}, checkpointing {checkpointing}: {peak / 2**30:.1f} GiB measured, "
          f"{expected / 2**30:.1f} estimated")  # fmt: skip
    assert 0.5 * expected < peak < 1.1 * expected


def test_what_is_sampled_is_what_is_scored(chat_pair):
    policy = Policy(PolicyConfig("qwen", str(chat_pair / "qwen"), max_new_tokens=16), 0, "cuda")
    (group,) = policy.rollout([Problem("a", "1+1?", "2")], torch.Generator().manual_seed(0))
    scored = policy.logprobs_of([group.prompt_ids] * 8, [r.completion_ids for r in group.rollouts])
    for rollout, logprobs in zip(group.rollouts, scored, strict=True):
        assert rollout.logprobs == pytest.approx(logprobs, abs=0.1)


def test_host_memory_is_pinned_while_a_policy_waits(chat_pair):
    policies = [
        Policy(PolicyConfig(name, str(chat_pair / name)), n, "cuda")
        for n, name in enumerate(("qwen", "smol"))
    ]
    allocation = Allocation(policies, ["qwen", "smol"], "swap", "cuda")
    with allocation.turn(policies[0], "rollout"):
        assert policies[0].device.type == "cuda"
        assert all(p.is_pinned() for p in policies[1].model.parameters())
