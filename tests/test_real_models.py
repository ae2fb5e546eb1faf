"""Two pretrained models, as a person has them. Run by hand, in about ten minutes:

    MRL_REAL_PAIR=DIR_A,DIR_B python -m pytest -n 0 -m real

The directories hold instruction-tuned models of two families, such as Qwen2.5-0.5B-Instruct and
SmolLM2-135M-Instruct. What takes random weights to show is in test_real_pair.py.
"""

import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mrl.alignment import LossyText, align, measure
from mrl.config import DATA
from mrl.models.loading import load_policy
from mrl.modes import MODES
from mrl.run.directory import read_metrics
from mrl.run.problems import load_problems
from mrl.settings.read import run_config
from tests.end_to_end.small_run import assert_same_run, start

PAIR = os.environ.get("MRL_REAL_PAIR", "")
PROBLEMS = load_problems(DATA / "words" / "train.jsonl")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(PAIR.count(",") != 1, reason="set MRL_REAL_PAIR=DIR_A,DIR_B"),
]


@pytest.fixture(scope="module")
def pair():
    """Both policies with the settings that `--pair` chooses."""
    config = run_config(PAIR, None, {}, ["dtype=float32"])
    return [load_policy(policy, index) for index, policy in enumerate(config.policies)]


@pytest.fixture(scope="module")
def groups(pair):
    """Groups of both: 32 problems, 8 completions each."""
    return [policy.rollout(PROBLEMS[::45], torch.Generator().manual_seed(0)) for policy in pair]


def test_prompt_and_completion_are_what_the_chat_template_makes_of_them(pair):
    for policy in pair:
        prompt_ids = policy.prompt_ids("How many?")
        messages = [
            {"role": "system", "content": policy.config.system_prompt},
            {"role": "user", "content": "How many?"},
            {"role": "assistant", "content": "2+2=4, \\boxed{4}"},
        ]
        whole = policy.tokenizer.apply_chat_template(messages, tokenize=False)
        completion_ids = [*policy.codec.encode("2+2=4, \\boxed{4}"), policy.eos_id]
        ours = policy.tokenizer.decode(prompt_ids + completion_ids)
        assert "3+2=5" in ours
        assert whole.startswith(ours)
        assert whole[len(ours) :].strip() == ""


def test_groups_end_with_end_tokens_and_are_right_now_and_then(pair, groups, verifier):
    for policy, found in zip(pair, groups, strict=True):
        rollouts = [rollout for group in found for rollout in group.rollouts]
        ended = [rollout for rollout in rollouts if rollout.finished]
        assert len(ended) > len(rollouts) / 10
        assert all(rollout.completion_ids[-1] in policy.eos_ids for rollout in ended)
        verifier.verify_groups(found)
    assert any(sum(group.rewards) for found in groups for group in found)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-3), ("mixed", 0.5)])
def test_what_was_sampled_is_what_is_scored(pair, dtype, most):
    for policy in pair:
        policy.mixed_precision = dtype == "mixed"
        try:
            groups = policy.rollout(PROBLEMS[:3], torch.Generator().manual_seed(1))
            rows = [(g.prompt_ids, r) for g in groups for r in g.rollouts]
            scored = policy.logprobs_of([p for p, _ in rows], [r.completion_ids for _, r in rows])
        finally:
            policy.mixed_precision = False
        gaps = [
            abs(sampled - again)
            for (_, rollout), logprobs in zip(rows, scored, strict=True)
            for sampled, again in zip(rollout.logprobs, logprobs, strict=True)
        ]
        assert max(gaps) < most
        assert sum(gaps) / len(gaps) < most / 10


def test_packed_rows_give_the_plain_forward_passs_numbers(pair, groups):
    for policy, found in zip(pair, groups, strict=True):
        group = found[0]
        completions = [rollout.completion_ids for rollout in group.rollouts]
        packed = policy.logprobs_of([group.prompt_ids] * len(completions), completions)
        for completion, logprobs in zip(completions, packed, strict=True):
            token_ids = torch.tensor([[*group.prompt_ids, *completion]])
            with torch.no_grad():
                logits = policy.model(input_ids=token_ids).logits[0, len(group.prompt_ids) - 1 : -1]
            logits[:, policy.suppressed] = -torch.inf
            plain = logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
            assert logprobs == pytest.approx(plain.tolist(), abs=1e-3)


def test_real_solutions_cross_both_ways_byte_by_byte(pair, groups):
    crossed = 0
    for (source, receiver), found in zip((pair, pair[::-1]), groups, strict=True):
        for rollout in (rollout for group in found for rollout in group.rollouts):
            try:
                theirs = source.codec.token_bytes(rollout.content_ids)
                token_ids = receiver.codec.encode(b"".join(theirs).decode())
            except (LossyText, UnicodeDecodeError):
                continue
            ours = receiver.codec.token_bytes(token_ids)
            assert b"".join(ours) == b"".join(theirs) == rollout.text.encode()
            assert receiver.tokenizer.decode(token_ids) == rollout.text
            chunks = align(theirs, ours)
            for chunk in chunks:
                one, two = theirs[slice(*chunk.source)], ours[slice(*chunk.receiver)]
                assert b"".join(one) == b"".join(two)
            residual = measure(theirs, ours)
            assert residual["source_tokens"] == len(rollout.content_ids)
            assert residual["receiver_tokens"] == len(token_ids)
            crossed += 1
    assert crossed >= 500


@pytest.fixture
def place(tmp_path):
    """A folder that is emptied at once: a checkpoint of such a pair takes gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)


def program(place, *arguments):
    """The program with the pair, in a process of its own; what it printed."""
    ran = start(place, *arguments, "--plain")
    out, error = ran.communicate()
    assert ran.returncode == 0, out + error
    return out


def short(place, mode, steps, *settings):
    """A run of few and short completions."""
    for part in ("train", "heldout"):
        chosen = (DATA / "words" / f"{part}.jsonl").read_text().splitlines(keepends=True)[::90]
        (place / f"{part}.jsonl").write_text("".join(chosen))
    shutil.copy(DATA / "words" / "system_prompt.txt", place)
    arguments = ["--pair", PAIR, "--mode", mode, "--steps", steps]
    wanted = ("train=train.jsonl", "heldout=heldout.jsonl", "prompts_per_step=2", "group_size=4")
    for setting in (*wanted, "max_new_tokens=24", *settings):
        arguments += ["--set", setting]
    return program(place, *arguments)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_trains_two_steps(place, mode):
    out = short(place, mode, 2)
    assert "M parameters, learning rate" in out
    lines = read_metrics(place / "runs" / f"{mode}-s0")
    assert [line["step"] for line in lines] == [1, 1, 2, 2]
    assert not any(line["update_skipped"] for line in lines)


def test_a_resumed_run_is_exact_and_its_models_load_and_generate(place):
    short(place, "sgt", 3, "checkpoint_every=1")
    whole, stopped = place / "runs" / "sgt-s0", place / "runs" / "stopped"
    shutil.copytree(whole, stopped, ignore=shutil.ignore_patterns("checkpoints"))
    (stopped / "checkpoints").mkdir()
    (whole / "checkpoints" / "step-000002").rename(stopped / "checkpoints" / "step-000002")
    program(place, "resume", stopped)
    names = [Path(path).name for path in PAIR.split(",")]
    assert_same_run(whole, stopped, 3, names)
    for name in names:
        saved = whole / "checkpoints" / "step-000003" / name
        model = AutoModelForCausalLM.from_pretrained(saved)
        tokenizer = AutoTokenizer.from_pretrained(saved)
        asked = tokenizer("2+2=", return_tensors="pt")
        written = model.generate(**asked, max_new_tokens=8, do_sample=False)
        assert written.shape[1] > asked.input_ids.shape[1]
