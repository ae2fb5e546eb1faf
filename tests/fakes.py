"""What stands in for a policy, a record or a team in the tests of several files."""

from dataclasses import dataclass, field

from mini_mrl import train_step
from mrl.objectives import OBJECTIVES, Objective
from mrl.placement import Allocation
from mrl.records import SuccessRecord
from mrl.run.metrics import sample_lines, step_metrics, time_metrics
from mrl.settings.read import make_mode
from mrl.team import Team
from mrl.tiny.skills import SKILLS, generate

PROBLEMS = [problem for skill in SKILLS for problem, _ in generate(skill, "train", 4, 0)]
NAMES = ("qwen-tiny", "llama-tiny")
# whose numbers some tests know; a mode that is added later has tests of its own
SHIPPED = ("solo", "solo-x2", "replay", "sft", "naive", "prp", "xgrpo", "sgt", "hacpo", "graft")


@dataclass
class ToyReceiver:
    """All that a mode may know of a policy. Each token of a peer's text has the same log-prob."""

    codec: object
    name: str = "a"
    objective: Objective = OBJECTIVES["grpo"]
    eos_id: int = 0
    max_new_tokens: int = 20
    vocab_size: int = 400
    logprob: float = -0.5
    scored: list = field(default_factory=list)  # the completions that a mode asked about

    def logprobs_of(self, prompts, completions):
        self.scored += completions
        return [[self.logprob] * len(completion) for completion in completions]


def success(prompt_id, text="\\boxed{1}", source="b", **fields):
    """A peer's record of a solution, written by hand. Its text is one token."""
    return SuccessRecord(
        prompt_id=prompt_id, source=source, version=0, text=text, answer="1",
        token_lengths=(len(text.encode()),), canonical=fields.pop("canonical", True),
        verdict="correct", finished=fields.pop("finished", True), **fields,
    )  # fmt: skip


def make_team(make_policy, mode, verifier, settings=None, placement="resident", sizes=(4, 4), **of):
    """A team of two random-weight policies, with three prompts per step.

    settings: of the mode. sizes: the group size of each policy. of: more settings of both policies.
    """
    modes = {name: make_mode(mode, settings or {}) for name in NAMES}
    of = {"updates_per_step": modes[NAMES[0]].published_updates} | of
    policies = [
        make_policy(name, index, group_size=size, max_new_tokens=8, **of)
        for index, (name, size) in enumerate(zip(NAMES, sizes, strict=True))
    ]
    allocation = Allocation(policies, NAMES, placement)
    return Team(policies, modes, PROBLEMS, verifier, allocation, prompts_per_step=3)


def one_step(team, number):
    """One step; returns the metrics by policy, and the rescues."""
    results = train_step(team, number)
    lines = {}
    for policy in team.policies:
        metrics = step_metrics(policy, results[policy.name])
        traffic = team.exchange.take_traffic(policy.name)
        ledger = time_metrics(team.allocation.ledger, policy.name)
        about = {"step": number, "policy": policy.name, "version": policy.version}
        lines[policy.name] = {**about, **metrics, **traffic, **ledger}
    samples = [e for p in team.policies for e in sample_lines(number, p, results[p.name])]
    return lines, [entry["rescue"] for entry in samples if "rescue" in entry]


def weights_of(team, index):
    """A copy of a policy's weights."""
    return {key: value.clone() for key, value in team.policies[index].model.state_dict().items()}
