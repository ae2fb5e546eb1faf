"""Two language models that teach each other, in one file: `solo` and `sgt`, from loading to update.

    python one_file.py              # sgt, 20 steps on the embedded tiny pair
    python one_file.py solo 60      # the control, 60 steps

This is the method of `mini_mrl.py` without its machinery: no packing, no placement, no checkpoints
and no live view. It imports nothing from the program, so you can read it from top to bottom, copy
it and change it. It makes one update per step with a learning rate of 1e-4, while the program makes
four with 3e-5. With the same seed and settings, both sample the same completions, find the same
rescues and compute the same losses (tests/test_one_file.py).
"""

import hashlib
import json
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast
from transformers.utils import logging

logging.disable_progress_bar()
DATA = Path(__file__).resolve().parent / "data"
PROMPTS_PER_STEP = 16
GROUP_SIZE = 8  # completions per prompt
MAX_NEW_TOKENS = 48
LEARNING_RATE = 1e-4
CLIP = 0.2
MAX_GRAD_NORM = 1.0
IMITATION_WEIGHT = 0.1
ROWS_AT_ONCE = 32  # samples per forward and backward pass


# ------------------------------------------------------------------- the problems and the verifier


@dataclass
class Problem:
    """A word problem and the integer that solves it."""

    prompt: str
    answer: str


def load_problems(path: Path) -> list[Problem]:
    """Read problems from a JSONL file, one object per line."""
    problems = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        problems.append(Problem(entry["prompt"], entry["answer"]))
    return problems


def judge(answer: str, text: str) -> float:
    """1.0 if the last box of a completion holds the answer, else 0.0."""
    boxes = re.findall(r"\\boxed\{(-?\d+)\}", text)
    return float(bool(boxes) and int(boxes[-1]) == int(answer))


def derive_seed(*parts: object) -> int:
    """A seed that depends on every part. All random numbers of a run come from such seeds."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def problems_of_step(problems: list[Problem], step: int, seed: int) -> list[Problem]:
    """The PROMPTS_PER_STEP problems of a step; steps count from 1. Each epoch is a new shuffle."""
    epoch, step_of_epoch = divmod(step - 1, len(problems) // PROMPTS_PER_STEP)
    order = list(problems)
    random.Random(derive_seed(seed, "epoch", epoch)).shuffle(order)
    start = step_of_epoch * PROMPTS_PER_STEP
    return order[start : start + PROMPTS_PER_STEP]


# ---------------------------------------------------------------------------------- the learners


@dataclass
class Learner:
    """One policy: a model, its own tokenizer and its own optimizer."""

    name: str
    index: int
    model: torch.nn.Module
    tokenizer: PreTrainedTokenizerFast
    optimizer: torch.optim.Optimizer


@dataclass
class Completion:
    """What a learner wrote for a prompt, with its log-probs at the time of sampling."""

    token_ids: list[int]  # including EOS, the token that ends a completion
    logprobs: list[float]  # one per token, nats
    finished: bool  # True if it ends in EOS, False if the token limit cut it short
    text: str
    reward: float = 0.0


@dataclass
class Sample:
    """A completion to train on, in the tokens of the learner that trains on it."""

    prompt_ids: list[int]
    token_ids: list[int]
    advantage: float = 0.0  # how its reward compares with its group's rewards (GRPO)
    is_imitation: bool = False  # True for a peer's solution


def load(name: str, index: int) -> Learner:
    """Load a policy of the tiny pair."""
    folder = DATA / "tiny" / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    return Learner(name, index, model, tokenizer, optimizer)


def tokenize_prompt(learner: Learner, problem: Problem) -> list[int]:
    """The prompt in the learner's own chat template and tokens."""
    message = {"role": "user", "content": problem.prompt}
    text = learner.tokenizer.apply_chat_template(
        [message], tokenize=False, add_generation_prompt=True
    )
    return learner.tokenizer(str(text), add_special_tokens=False).input_ids


# -------------------------------------------------------------------------------------- sampling


def token_logprobs(learner: Learner, logits: torch.Tensor) -> torch.Tensor:
    """Log-probs of the next token, for both sampling and scoring. Padding is excluded."""
    logits = logits.float()
    pad_id, eos_id = learner.tokenizer.pad_token_id, learner.tokenizer.eos_token_id
    if pad_id is not None and pad_id != eos_id:
        logits = logits.index_fill(-1, torch.tensor(pad_id), -torch.inf)
    return torch.log_softmax(logits, dim=-1)


@torch.no_grad()
def sample(
    learner: Learner, prompts: list[list[int]], generator: torch.Generator
) -> list[list[Completion]]:
    """Sample GROUP_SIZE completions for each prompt."""
    rows = [torch.tensor(prompt) for prompt in prompts for _ in range(GROUP_SIZE)]
    token_ids = pad_sequence(rows, batch_first=True, padding_side="left")
    ones = [torch.ones(len(row), dtype=torch.long) for row in rows]
    mask = pad_sequence(ones, batch_first=True, padding_side="left")
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    uniform = torch.rand(MAX_NEW_TOKENS, len(rows), generator=generator)

    cache = DynamicCache()
    tokens: list[torch.Tensor] = []
    logprobs: list[torch.Tensor] = []
    ended = torch.zeros(len(rows), dtype=torch.bool)
    for t in range(MAX_NEW_TOKENS):
        output = learner.model(
            input_ids=token_ids, attention_mask=mask, position_ids=positions,
            cache=cache, use_cache=True,
        )  # fmt: skip
        scores = token_logprobs(learner, output.logits[:, -1])

        # draw the first token whose cumulative probability is above the uniform number
        cumulative = scores.double().exp().cumsum(dim=-1)
        threshold = uniform[t].double()[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, threshold, right=True)
        tokens.append(drawn[:, 0])
        logprobs.append(scores.gather(1, drawn)[:, 0])

        ended = ended | (drawn[:, 0] == learner.tokenizer.eos_token_id)
        if ended.all():
            break
        token_ids = drawn
        mask = torch.cat([mask, torch.ones(len(rows), 1, dtype=torch.long)], dim=1)
        positions = positions[:, -1:] + 1

    return split_into_groups(learner, torch.stack(tokens, dim=1), torch.stack(logprobs, dim=1))


def split_into_groups(
    learner: Learner, tokens: torch.Tensor, logprobs: torch.Tensor
) -> list[list[Completion]]:
    """Cut each row of [rows, seq] after its EOS, and put the rows of each prompt together."""
    completions = []
    for row, row_logprobs in zip(tokens.tolist(), logprobs.tolist(), strict=True):
        eos_id = learner.tokenizer.eos_token_id
        finished = eos_id in row
        length = row.index(eos_id) + 1 if finished else len(row)
        content = row[: length - 1] if finished else row
        text = str(learner.tokenizer.decode(content, skip_special_tokens=False))
        completions.append(Completion(row[:length], row_logprobs[:length], finished, text))

    return [
        completions[start : start + GROUP_SIZE] for start in range(0, len(completions), GROUP_SIZE)
    ]


# ------------------------------------------------------------------------- from groups to samples


def own_samples(prompt_ids: list[int], group: list[Completion]) -> list[Sample]:
    """The learner's own completions, each with its advantage within its group (GRPO)."""
    rewards = torch.tensor([completion.reward for completion in group])
    advantages = rewards - rewards.mean()
    if rewards.min() == rewards.max():
        advantages = torch.zeros_like(rewards)  # all correct or all incorrect: there is no gradient
    advantages = advantages / (rewards.std(correction=0) + 1e-6)

    samples = []
    for completion, advantage in zip(group, advantages.tolist(), strict=True):
        samples.append(Sample(prompt_ids, completion.token_ids, advantage))
    return samples


def rescue(
    learner: Learner, prompt_ids: list[int], solutions: list[Completion], rng: random.Random
) -> Sample | None:
    """Draw one of a peer's solutions to imitate, in the learner's own tokens (SGT)."""
    candidates = list(solutions)
    while candidates:
        solution = rng.choice(candidates)
        candidates.remove(solution)

        # The text follows a special token, so that the tokenizer adds no space and merges nothing.
        text = f"{learner.tokenizer.eos_token}{solution.text}"
        token_ids = learner.tokenizer(text, add_special_tokens=False).input_ids[1:]
        if learner.tokenizer.decode(token_ids, skip_special_tokens=False) != solution.text:
            continue  # this tokenizer cannot represent the text exactly
        if solution.finished:
            token_ids.append(learner.tokenizer.eos_token_id)
        if len(token_ids) <= MAX_NEW_TOKENS:
            return Sample(prompt_ids, token_ids, is_imitation=True)
    return None


# ---------------------------------------------------------------------------------------- learning


def completion_logprobs(
    learner: Learner, samples: list[Sample]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of samples under the current weights, and their mask, [samples, seq] each."""
    rows = [torch.tensor(sample.prompt_ids + sample.token_ids) for sample in samples]
    token_ids = pad_sequence(rows, batch_first=True)
    mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True)
    logits = learner.model(input_ids=token_ids, attention_mask=mask).logits
    scores = token_logprobs(learner, logits[:, :-1]).gather(2, token_ids[:, 1:, None])[:, :, 0]

    completion_mask = torch.zeros_like(scores, dtype=torch.bool)
    for row, sample in enumerate(samples):
        start = len(sample.prompt_ids) - 1  # the index that predicts the first completion token
        completion_mask[row, start : start + len(sample.token_ids)] = True
    return scores, completion_mask


def learn(learner: Learner, samples: list[Sample]) -> dict[str, float]:
    """One optimizer update: the clipped objective, and imitation of the peer's solutions."""
    own = [sample for sample in samples if not sample.is_imitation]
    imitated = [sample for sample in samples if sample.is_imitation]
    taught = [sample for sample in own if sample.advantage != 0]
    losses = {"loss": 0.0, "loss_nll": 0.0}
    learner.optimizer.zero_grad()

    for start in range(0, len(taught), ROWS_AT_ONCE):
        batch = taught[start : start + ROWS_AT_ONCE]
        logprobs, mask = completion_logprobs(learner, batch)
        advantages = torch.tensor([[sample.advantage] for sample in batch])

        # The weights have not changed since sampling, so the ratio is 1. Its gradient is not 0.
        ratio = torch.exp(logprobs - logprobs.detach())
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        token_losses = -torch.minimum(ratio * advantages, clipped * advantages)
        # the mean over each completion's tokens, then over *all* of the learner's completions
        loss = (token_losses * mask / mask.sum(dim=1, keepdim=True)).sum() / len(own)
        loss.backward()
        losses["loss"] += float(loss.detach())

    if imitated:
        logprobs, mask = completion_logprobs(learner, imitated)
        nll = -(logprobs * mask / mask.sum(dim=1, keepdim=True)).sum() / len(imitated)
        loss = IMITATION_WEIGHT * nll
        loss.backward()
        losses["loss_nll"] = float(loss.detach())

    norm = torch.nn.utils.clip_grad_norm_(learner.model.parameters(), MAX_GRAD_NORM)
    if norm > 0:
        learner.optimizer.step()
    return {**losses, "grad_norm": float(norm), "rescues": len(imitated)}


# ------------------------------------------------------------------------------------- the step


def train_step(
    learners: list[Learner], problems: list[Problem], mode: str, seed: int, step: int
) -> dict[str, dict[str, float]]:
    """Sample, judge, share and learn. Returns the metrics of each learner, by name."""
    groups: dict[str, list[list[Completion]]] = {}
    prompts: dict[str, list[list[int]]] = {}
    for learner in learners:
        name = learner.name
        prompts[name] = [tokenize_prompt(learner, problem) for problem in problems]
        generator = torch.Generator().manual_seed(derive_seed(seed, step, learner.index))
        groups[name] = sample(learner, prompts[name], generator)
        for problem, group in zip(problems, groups[name], strict=True):
            for completion in group:
                completion.reward = judge(problem.answer, completion.text)

    metrics = {}
    for learner in learners:
        (peer,) = [other for other in learners if other is not learner]
        rng = random.Random(derive_seed(seed, step, learner.index, "mode"))
        samples = []
        for number, group in enumerate(groups[learner.name]):
            prompt_ids = prompts[learner.name][number]
            samples += own_samples(prompt_ids, group)

            # if all attempts fail, the group has no gradient, and only a peer's solution can help
            failed = not any(completion.reward for completion in group)
            solutions = [c for c in groups[peer.name][number] if c.reward]
            if mode == "sgt" and failed and solutions:
                rescued = rescue(learner, prompt_ids, solutions, rng)
                if rescued:
                    samples.append(rescued)

        rewards = [c.reward for group in groups[learner.name] for c in group]
        metrics[learner.name] = learn(learner, samples)
        metrics[learner.name]["reward"] = sum(rewards) / len(rewards)
    return metrics


def main(mode: str = "sgt", steps: int = 20, seed: int = 0) -> None:
    """Train the tiny pair and print a line for each step and learner."""
    learners = [load("qwen-tiny", 0), load("llama-tiny", 1)]
    train = load_problems(DATA / "words" / "train.jsonl")
    for step in range(1, steps + 1):
        problems = problems_of_step(train, step, seed)
        metrics = train_step(learners, problems, mode, seed, step)
        for name, numbers in metrics.items():
            solved, rescues = numbers["reward"], numbers["rescues"]
            print(f"step {step}: {name} solves {solved:.0%}, {rescues} rescues")


if __name__ == "__main__":
    words = sys.argv[1:]
    mode = words[0] if words else "sgt"
    steps = words[1] if len(words) > 1 else "20"
    if mode not in ("sgt", "solo") or not steps.isdigit():
        sys.exit("Usage: python one_file.py [sgt|solo] [STEPS]")
    torch.set_num_threads(1)  # for models this small, more threads are slower
    main(mode, int(steps))
