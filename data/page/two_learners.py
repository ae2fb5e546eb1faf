"""The example of TUTORIAL's sections 2, 5 and 6 with a second learner: what the page plays.

Two learners, two prompts, four texts for each prompt, of which the first one is right. What is left
to chance is handed in, so that `play.js` must end at the same numbers (`tests/test_page.py`).
"""

from itertools import product

import torch

STEPS = 300  # that the page plays
RATE = 0.5  # learning rate
IMITATION_WEIGHT = 0.1
WRONG = (1.5, -0.5, -3.5)  # logits of the three wrong texts


def first_logits(luck: float) -> torch.Tensor:
    """Logits [4] of a learner that writes the right text with a chance of `luck`."""
    wrong = torch.tensor(WRONG, dtype=torch.float64)
    right = torch.tensor(luck, dtype=torch.float64).logit() + wrong.logsumexp(0)
    return torch.cat([right[None], wrong])


class World:
    """Both learners, in one of three positions of the switch.

    sharing: "alone", "memory" or "peer"; luck: [learner][prompt], how often each is right at first.
    """

    def __init__(self, sharing: str, luck: list[list[float]]) -> None:
        self.sharing = sharing
        self.logits = {}  # (learner, prompt) -> [4]
        self.remembers = set()  # (learner, prompt) that had a right text
        for place in product((0, 1), (0, 1)):
            learner, prompt = place
            self.logits[place] = first_logits(luck[learner][prompt])

    def step(self, uniforms: list[list[list[float]]]) -> set[tuple[int, int]]:
        """One step; uniforms: [learner][prompt][8] in [0, 1). Returns who imitated where."""
        texts = {}
        for (learner, prompt), logits in self.logits.items():
            numbers = torch.tensor(uniforms[learner][prompt], dtype=torch.float64)
            drawn = torch.searchsorted(logits.softmax(0).cumsum(0), numbers, right=True)
            texts[learner, prompt] = drawn.clamp(max=3)  # rounding may leave the sum below 1

        imitated = set()
        for (learner, prompt), own in texts.items():
            sources = {
                "alone": False,
                "memory": (learner, prompt) in self.remembers,
                "peer": (texts[1 - learner, prompt] == 0).any(),
            }
            if (own == 0).any():
                self.remembers.add((learner, prompt))
            elif sources[self.sharing]:
                imitated.add((learner, prompt))
        for place, own in texts.items():
            self.logits[place] = learnt(self.logits[place], own, place in imitated)
        return imitated


def learnt(logits: torch.Tensor, texts: torch.Tensor, imitate: bool) -> torch.Tensor:
    """The logits after one update with the own texts, and with the right one if it is imitated."""
    logits = logits.clone().requires_grad_()
    log_p = logits.log_softmax(0)
    rewards = (texts == 0).double()
    loss = -((rewards - rewards.mean()) * log_p[texts]).mean()
    if imitate:
        loss = loss - IMITATION_WEIGHT * log_p[0]
    (gradient,) = torch.autograd.grad(loss, logits)
    return logits.detach() - RATE * gradient


def one_learner(start: float, sharing: str, steps: int = 400) -> list[float]:
    """J before each step of TUTORIAL's own loop, and at the end; start: logit of the right text."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([start, *WRONG])
    curve, remembers = [], False
    for _ in range(steps + 1):
        chances = logits.log_softmax(0).exp()
        curve.append(float(chances[0]))
        texts = chances.multinomial(8, replacement=True, generator=generator)
        right = bool((texts == 0).any())
        imitates = not right and (sharing == "peer" or (sharing == "memory" and remembers))
        logits = learnt(logits, texts, imitates)
        remembers = remembers or right
    return curve
