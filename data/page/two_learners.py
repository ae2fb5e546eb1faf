"""The example of TUTORIAL's sections 2, 5 and 6 with a second learner: what the page plays.

Two learners, two prompts, four texts for each prompt, of which the first one is right. What is left
to chance is handed in, so that `play.js` must end at the same numbers (`tests/test_page.py`).
"""

import torch

STEPS = 300  # that the page plays
GROUP = 8  # texts that a learner writes for a prompt in a step
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
        self.logits = [[first_logits(chance) for chance in of_one] for of_one in luck]
        self.remembers = [[False for _ in of_one] for of_one in luck]  # a right text

    def chances(self) -> list[list[float]]:
        """How often each learner is right on each prompt."""
        return [[logits.softmax(0)[0].item() for logits in of_one] for of_one in self.logits]

    def step(self, uniforms: list[list[list[float]]]) -> list[list[bool]]:
        """One step; uniforms: [learner][prompt][GROUP] in [0, 1). Returns who imitated where."""
        texts = []
        for of_one, chance in zip(self.logits, uniforms, strict=True):
            texts.append([])
            for logits, numbers in zip(of_one, chance, strict=True):
                cumulative = logits.softmax(0).cumsum(0)
                drawn = torch.searchsorted(cumulative, torch.tensor(numbers).double(), right=True)
                texts[-1].append(drawn.clamp(max=3))  # rounding may leave the last sum below 1

        imitated = [[False, False], [False, False]]
        for learner in (0, 1):
            for prompt in (0, 1):
                own, peers = texts[learner][prompt], texts[1 - learner][prompt]
                source = {
                    "alone": False,
                    "memory": self.remembers[learner][prompt],
                    "peer": bool((peers == 0).any()),
                }[self.sharing]
                imitated[learner][prompt] = source and not (own == 0).any()
                self._learn(learner, prompt, own, imitated[learner][prompt])
                self.remembers[learner][prompt] |= bool((own == 0).any())
        return imitated

    def _learn(self, learner: int, prompt: int, texts: torch.Tensor, imitate: bool) -> None:
        """One update with the own texts, and with the right one if it is imitated."""
        logits = self.logits[learner][prompt].clone().requires_grad_()
        log_p = logits.log_softmax(0)
        rewards = (texts == 0).double()
        advantages = rewards - rewards.mean()

        loss = -(advantages * log_p[texts]).mean()
        if imitate:
            loss = loss - IMITATION_WEIGHT * log_p[0]
        (gradient,) = torch.autograd.grad(loss, logits)
        self.logits[learner][prompt] = logits.detach() - RATE * gradient
