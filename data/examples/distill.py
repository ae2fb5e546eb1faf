"""On-policy distillation between two tokenizers: not a mode, but a method from the same parts.

    python data/examples/distill.py --seeds 31-33               # on prompts whose gate is open
    python data/examples/distill.py --seeds 31-33 --everywhere  # on all prompts

Each policy samples, and its peer *scores* the completions in the peer's own tokens. This is GKD
(arXiv 2306.13649) with sampled tokens instead of whole distributions, because distributions over
two different vocabularies cannot be compared. Chunk by chunk, the scores are divided among the
receiver's tokens. A token's advantage is

    A_t = GRPO's advantage + beta * (log p_peer(chunk of t) - log p_own(chunk of t))

with the difference limited to +-CLAMP nats. The gate of a prompt is open when all of the policy's
attempts fail and the peer has a solution. So this is SGT, but the policy learns from scores of its
own completions instead of the peer's solution.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from mini_mrl import load_team
from mrl.advantages import group_advantages
from mrl.alignment import LossyText, project
from mrl.diagnostics import LearningStats
from mrl.learning import optimizer_step
from mrl.objectives import surrogate_loss, token_coefficients, token_ratio
from mrl.policy import Policy
from mrl.samples import Group, Rollout, derive_seed, problems_of_step
from mrl.team import Team

CLAMP = 5.0  # nats; otherwise a single chunk that the peer never writes could outweigh the rest
Lesson = tuple[Group, Rollout, Tensor]  # the tensor is the advantage of each token, [seq]


def distill_step(team: Team, step: int, beta: float, everywhere: bool) -> dict[str, float]:
    """One step of all policies, in the stages of `train_step`. Returns each policy's reward."""
    team.forget_last_step()
    problems = problems_of_step(team.problems, step, team.prompts_per_step, team.seed)

    groups: dict[str, list[Group]] = {}
    for policy in team.policies:
        generator = torch.Generator().manual_seed(derive_seed(team.seed, step, policy.index))
        groups[policy.name] = policy.rollout(problems, generator)
        team.verifier.verify_groups(groups[policy.name])

    # both peers score before either of them learns
    one, two = team.policies
    lessons = {}
    for receiver, peer in ((one, two), (two, one)):
        pairs = zip(groups[receiver.name], groups[peer.name], strict=True)
        lessons[receiver.name] = []
        for own, theirs in pairs:
            opens = everywhere or (own.outcome == "all_fail" and theirs.outcome != "all_fail")
            lessons[receiver.name] += make_lessons(receiver, peer, own, beta if opens else 0.0)

    for policy in team.policies:
        rng = random.Random(derive_seed(team.seed, step, policy.index, "order"))
        learn_from(policy, lessons[policy.name], rng)
    return {name: sum(sum(g.rewards) for g in made) / sum(len(g.rewards) for g in made)
            for name, made in groups.items()}  # fmt: skip


def make_lessons(receiver: Policy, peer: Policy, group: Group, beta: float) -> list[Lesson]:
    """The completions of a group, each with the advantages of its tokens."""
    by_reward = group_advantages(torch.tensor([group.rewards]))[0].tolist()
    lessons = []
    for rollout, advantage in zip(group.rollouts, by_reward, strict=True):
        advantages = torch.full((len(rollout.completion_ids),), advantage)
        if beta:
            advantages += beta * peers_opinion(receiver, peer, group, rollout)
        lessons.append((group, rollout, advantages))
    return lessons


def peers_opinion(receiver: Policy, peer: Policy, group: Group, rollout: Rollout) -> Tensor:
    """log p_peer - log p_own of each token's chunk, [seq] nats; 0 if the peer cannot score it."""
    opinion = torch.zeros(len(rollout.completion_ids))  # it stays 0 for EOS
    content = rollout.content_ids
    try:
        text = receiver.codec.decode(content)
        peers_ids = peer.codec.encode(text)
    except LossyText:  # the peer's tokens cannot hold the text exactly
        return opinion
    if not peers_ids:
        return opinion

    # the peer's log-probs of the receiver's completion, in the peer's tokens
    prompt = peer.prompt_ids(group.problem.prompt)
    (scores,) = peer.logprobs_of([prompt], [peers_ids])
    receiver_tokens = receiver.codec.token_bytes(content)
    spread, chunk_of = project(peer.codec.token_bytes(peers_ids), receiver_tokens, scores)

    # sum both sides over each chunk, and give the difference to every token of the chunk
    chunks = torch.tensor(chunk_of)
    gaps = torch.tensor(spread) - torch.tensor(rollout.logprobs[: len(content)])
    of_chunk = torch.zeros(len(gaps)).index_add(0, chunks, gaps)
    opinion[: len(content)] = of_chunk[chunks].clamp(-CLAMP, CLAMP)
    return opinion


def learn_from(policy: Policy, lessons: Sequence[Lesson], rng: random.Random) -> None:
    """Make the step's updates with the policy's own objective and one advantage per token."""
    updates = policy.config.updates_per_step or 1
    lessons = rng.sample(lessons, len(lessons))
    for number in range(updates):
        batch = lessons[number::updates]
        if not any(bool(advantages.any()) for _, _, advantages in batch):
            continue  # no advantage, so no gradient

        prompts = [group.prompt_ids for group, _, _ in batch]
        completions = [rollout.completion_ids for _, rollout, _ in batch]
        logprobs, mask = policy.score(prompts, completions)  # [batch, seq]
        sampled = [torch.tensor(rollout.logprobs) for _, rollout, _ in batch]
        ratio = token_ratio(logprobs, pad_sequence(sampled, True), mask)
        advantages = pad_sequence([per_token for _, _, per_token in batch], True)

        losses, _, _ = surrogate_loss(ratio, advantages, policy.objective)
        counts = {"tokens": int(mask.sum()), "max_completion_length": policy.max_new_tokens}
        aggregation = policy.objective.aggregation
        coefficients = token_coefficients(mask, aggregation, sequences=len(batch), **counts)
        (losses * coefficients).sum().backward()
        optimizer_step(policy, LearningStats())


def main() -> None:
    """Train with each seed and print pass@1 on the test set, by policy and skill."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", default="31-33", help="range of seeds (default: 31-33)")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--beta", type=float, default=0.2)
    parser.add_argument("--everywhere", action="store_true", help="distill on every prompt")
    asked = parser.parse_args()

    first, last = map(int, asked.seeds.split("-"))
    torch.set_num_threads(1)  # as in `train_step`: results depend on the number of threads
    problems = Path(__file__).resolve().parents[1] / "words" / "test.jsonl"
    for seed in range(first, last + 1):
        team = load_team("tiny", mode="solo", seed=seed)
        for step in range(1, asked.steps + 1):
            rewards = distill_step(team, step, asked.beta, asked.everywhere)
            if step % 20 == 0:
                print(f"seed {seed}, step {step}", {k: round(r, 2) for k, r in rewards.items()})
        for name, scores in team.evaluate(problems).items():
            print(f"seed {seed}, {name}", {skill: round(100 * s) for skill, s in scores.items()})


if __name__ == "__main__":
    main()
