import re
from statistics import mean

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mrl.config import DATA, PolicyConfig
from mrl.experiment.evaluation import evaluate_policy
from mrl.experiment.problems import load_problems
from mrl.policy import Policy
from mrl.tiny.pair import OWN_SKILLS, _encode_example, _pad, build_tokenizer, warm_start_pair
from mrl.tiny.skills import SKILLS

HELDOUT = load_problems(DATA / "words" / "heldout.jsonl")


def start_scores(directory, verifier):
    """Policy -> skill -> held-out pass@1."""
    scores = {}
    for name in OWN_SKILLS:
        policy = Policy(PolicyConfig(name, str(directory / name)))
        evaluation = evaluate_policy(policy, HELDOUT, verifier, samples=2, seed=0)
        scores[name] = {skill: evaluation.score(1, skill) for skill in evaluation.skills}
    return scores


def assert_half_the_skills(scores):
    """Each policy reads its own skills right and misreads the others with confidence."""
    for name, by_skill in scores.items():
        for skill, score in by_skill.items():
            if skill in OWN_SKILLS[name]:
                assert score > 0.75, (name, skill, score)
            else:
                assert score < 0.20, (name, skill, score)


def test_the_shipped_pair_has_half_the_skills_each(verifier):
    assert_half_the_skills(start_scores(DATA / "tiny", verifier))


def readings(directory):
    """Policy -> skill -> share of completions whose first operator is the right one."""
    right = {skill.name: skill.operation[1] for skill in SKILLS if skill.name != "loses"}
    shares = {}
    for name in OWN_SKILLS:
        policy = Policy(PolicyConfig(name, str(directory / name)))
        groups = policy.rollout(HELDOUT, torch.Generator().manual_seed(0), 1)
        found = {skill: [] for skill in right}
        for group in groups:
            if group.problem.skill in right:
                operator = re.search(r"[-+*/]", group.rollouts[0].text)
                found[group.problem.skill].append(
                    operator is not None and operator[0] == right[group.problem.skill]
                )
        shares[name] = {skill: mean(hits) for skill, hits in found.items()}
    return shares


@pytest.mark.slow
def test_the_warm_start_learns_to_read_in_120_updates(tmp_path):
    """The reading comes before the arithmetic. The whole recipe (550 and 850 updates, six minutes)
    is not run here, but by hand:
    `python mini_mrl.py warmstart --out DIR`, then `start_scores(DIR)` as above."""
    warm_start_pair(tmp_path, updates=120)
    for name, by_skill in readings(tmp_path).items():
        for skill, share in by_skill.items():
            if skill in OWN_SKILLS[name]:
                assert share > 0.6, (name, skill, share)
            else:
                assert share < 0.3, (name, skill, share)


def test_a_short_warm_start_writes_what_transformers_can_load(tmp_path):
    warm_start_pair(tmp_path, updates=1)
    for name in OWN_SKILLS:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
        assert model.config.vocab_size == len(tokenizer)


@pytest.mark.parametrize("name", OWN_SKILLS)
def test_the_shipped_tokenizers_are_what_the_recipe_makes(name):
    shipped = AutoTokenizer.from_pretrained(DATA / "tiny" / name)
    assert shipped.backend_tokenizer.to_str() == build_tokenizer(name).backend_tokenizer.to_str()


def test_the_two_tokenizers_are_really_different():
    text = "47-38: 17-8=9, 4-1-3=0. \\boxed{9}"
    qwen, llama = (build_tokenizer(name).tokenize(text) for name in OWN_SKILLS)
    assert len(qwen) > 1.5 * len(llama)
    assert {"4", "7", "-", "3", "8"} <= set(qwen)
    assert any(any(c.isdigit() for c in token) and len(token) > 2 for token in llama)


def test_the_warm_start_learns_the_solution_only_its_end_included():
    tokenizer = build_tokenizer("qwen-tiny")
    prompt, completion = _encode_example(tokenizer, "7*8?", "7*8=56. \\boxed{56}")
    assert completion[-1] == tokenizer.eos_token_id
    token_ids, mask = _pad([(prompt, completion), ([5], [6])], tokenizer.pad_token_id)
    assert token_ids[0].tolist() == prompt + completion
    assert mask[0].tolist() == [False] * len(prompt) + [True] * len(completion)
    assert mask[1].tolist() == [False, True] + [False] * (len(token_ids[1]) - 2)
    assert torch.equal(token_ids[1, 2:], torch.full_like(token_ids[1, 2:], 3))
