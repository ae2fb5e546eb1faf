"""The example of TUTORIAL's sections 2, 5 and 6 with a second learner: what the page plays.

There are two learners and two prompts. Each learner has four completions for each prompt, and the
first one is correct. All random numbers are arguments, so that `play.js` must end at the same
numbers (`tests/test_page.py`).
"""

from itertools import product

import torch

STEPS = 300  # that the page plays
RATE = 0.5  # learning rate
GROUP = 8  # completions per prompt
IMITATION_WEIGHT = 0.1
WRONG = (1.5, -0.5, -3.5)  # logits of the three wrong completions


def first_logits(luck: float) -> torch.Tensor:
    """The logits [4] of a learner whose completions are correct with a chance of `luck`."""
    wrong = torch.tensor(WRONG, dtype=torch.float64)
    correct = torch.tensor(luck, dtype=torch.float64).logit() + wrong.logsumexp(0)
    return torch.cat([correct[None], wrong])


class World:
    """Both learners, and one of three ways to learn.

    sharing: "alone", "replay" or "peer".
    luck: [learner][prompt], the share of completions that are correct at first.
    weight: weight of the imitation loss.
    liar: a peer without a solution sends a wrong completion, and its receiver does not check it.
    """

    def __init__(
        self,
        sharing: str,
        luck: list[list[float]],
        weight: float = IMITATION_WEIGHT,
        liar: bool = False,
    ) -> None:
        self.sharing, self.weight, self.liar = sharing, weight, liar
        self.logits = {}  # (learner, prompt) -> [4]
        self.found = set()  # (learner, prompt) with a solution, which is kept for replay
        for place in product((0, 1), (0, 1)):
            learner, prompt = place
            self.logits[place] = first_logits(luck[learner][prompt])

    def step(self, uniforms: list[list[list[float]]]) -> dict[tuple[int, int], int]:
        """Make one step; returns what was imitated: (learner, prompt) -> a completion.

        uniforms: [learner][prompt][group], numbers in [0, 1).
        """
        completions = {}
        for (learner, prompt), logits in self.logits.items():
            numbers = torch.tensor(uniforms[learner][prompt], dtype=torch.float64)
            drawn = torch.searchsorted(logits.softmax(0).cumsum(0), numbers, right=True)
            completions[learner, prompt] = drawn.clamp(max=3)  # rounding may keep the sum below 1

        imitated = {}
        for (learner, prompt), own in completions.items():
            theirs = completions[1 - learner, prompt]
            if (own == 0).any():
                self.found.add((learner, prompt))
            elif self.sharing == "replay" and (learner, prompt) in self.found:
                imitated[learner, prompt] = 0
            elif self.sharing == "peer" and ((theirs == 0).any() or self.liar):
                imitated[learner, prompt] = 0 if (theirs == 0).any() else int(theirs[0])
        for place, own in completions.items():
            self.logits[place] = learned(self.logits[place], own, imitated.get(place), self.weight)
        return imitated


def learned(
    logits: torch.Tensor,
    completions: torch.Tensor,
    imitated: int | None,
    weight: float = IMITATION_WEIGHT,
) -> torch.Tensor:
    """The logits after one update with the learner's own completions.

    imitated: the completion that the update also makes more likely, or None.
    """
    logits = logits.clone().requires_grad_()
    log_p = logits.log_softmax(0)
    rewards = (completions == 0).double()
    loss = -((rewards - rewards.mean()) * log_p[completions]).mean()
    if imitated is not None:
        loss = loss - weight * log_p[imitated]
    (gradient,) = torch.autograd.grad(loss, logits)
    return logits.detach() - RATE * gradient


def one_learner(start: float, sharing: str, steps: int = 400) -> list[float]:
    """J before each step of TUTORIAL's own loop, and at the end.

    start: the first logit of the correct completion.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([start, *WRONG])
    curve, found = [], False
    for _ in range(steps + 1):
        chances = logits.log_softmax(0).exp()
        curve.append(float(chances[0]))
        completions = chances.multinomial(GROUP, replacement=True, generator=generator)
        correct = bool((completions == 0).any())
        imitates = not correct and (sharing == "peer" or (sharing == "replay" and found))
        logits = learned(logits, completions, 0 if imitates else None)
        found = found or correct
    return curve
