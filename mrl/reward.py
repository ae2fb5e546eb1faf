"""The verdict on a completion, and the reward that follows from it."""

from enum import StrEnum


class Verdict(StrEnum):
    """The verifier's judgment of one completion. Only `CORRECT` is rewarded."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"  # the completion has no box, or its box holds nothing readable
    TRUNCATED = "truncated"  # the token limit cut the completion short before a box was complete
    TIMEOUT = "timeout"  # judging took too long, or ended the process that judges

    @property
    def reward(self) -> float:
        """1.0 for a correct completion, else 0.0."""
        return float(self is Verdict.CORRECT)
