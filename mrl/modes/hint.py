"""hint: if all attempts fail, a peer begins, and the policy goes on in its own way.

In SGT, the policy imitates the whole text of a peer, which may be written in a way that is foreign
to it. Here, the policy gets only the *beginning* of a peer's solution, in its own tokens. It
samples again from there (a *second attempt*), and imitates a completion of its own that the
verifier accepts, the beginning included:

    L_k = L_own,k + lambda * mean over prompts with a correct second attempt of NLL_k(y | x)

So the imitated text is nearly the policy's own. NLL is the mean over its tokens, as in SGT.

For each prompt on which all attempts failed, one of the peers' usable solutions is drawn uniformly.
The policy makes `attempts` second attempts. Each has a beginning of its own length: its share of
the solution's bytes is drawn uniformly between `least_share` and `most_share`. Of the correct ones,
the one with the shortest beginning is imitated. If none is correct, nothing is.

A beginning consists of the first tokens of the *whole* solution in the receiver's encoding. If only
the beginning were encoded, its last token would often be one that the receiver never writes there,
because its tokenizer would have joined it with the next character. A beginning has at least one
token and never touches the box. A solution that is only a box has no beginning, so it is not used.

A false solution can cost second attempts, but it cannot teach anything wrong, because the policy's
own verifier judges what is imitated.

Related work gives a learner parts of a solution, mostly from a fixed source: HINT (arXiv
2510.09388), POPE (2601.18779), Scaf-GRPO (2510.19807). In CoRe (2601.21600), a peer's hint stands
in the prompt of a second round.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from mrl.config import setting
from mrl.modes.mode import Beginning, Experience, Mode, Received, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.records import SuccessRecord
from mrl.samples import Group, SecondAttempt, TrainingSample

BOX = b"\\boxed"  # a beginning ends before it


@dataclass
class Hint(Mode[SuccessRecord]):
    """The policy's own objective; if all attempts fail, also go on from a peer's beginning."""

    name = "hint"
    consumes = SuccessRecord
    imitation_weight: float = setting(1.0, "weight lambda of the imitation loss", least=0)
    attempts: int = setting(8, "second attempts per prompt on which all attempts failed", least=1)
    least_share: float = setting(0.1, "smallest share of a solution to begin with", least=0, most=1)
    most_share: float = setting(0.5, "largest share of a solution to begin with", least=0, most=1)

    def beginnings(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[SuccessRecord]],
        rng: random.Random,
    ) -> list[list[Beginning]]:
        """Several beginnings of one solution for each prompt on which all attempts failed."""
        named: list[list[Beginning]] = []
        for experience in experiences:
            usable = experience.usable
            if experience.group.outcome == "all_fail" and usable:
                named.append(self.beginnings_of(receiver, rng.choice(usable), rng))
            else:
                named.append([])
        return named

    def beginnings_of(
        self, receiver: Receiver, solution: Received[SuccessRecord], rng: random.Random
    ) -> list[Beginning]:
        """Beginnings of one solution, each of a random length; none if it has no beginning."""
        shares = [rng.uniform(self.least_share, self.most_share) for _ in range(self.attempts)]
        begun = [first_tokens(receiver, solution, share) for share in shares]
        return [Beginning(token_ids, solution.record) for token_ids in begun if token_ids]

    def training_samples(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[SuccessRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The receiver's samples, and for each prompt a correct second attempt, if there is one."""
        batch = TrainingBatch()
        for experience in experiences:
            batch.samples += own_samples(receiver, experience.group)
            correct = [attempt for attempt in experience.second_attempts if attempt.reward]
            if correct:
                own = min(correct, key=lambda attempt: attempt.given)
                batch.samples.append(imitate(experience.group, own, self.imitation_weight))
        return batch


def imitate(group: Group, attempt: SecondAttempt, weight: float) -> TrainingSample:
    """A sample that imitates a whole second attempt: the tokens that were given and sampled."""
    return TrainingSample(
        prompt_ids=group.prompt_ids,
        completion_ids=attempt.completion_ids,
        loss="imitation",
        weight=weight,
        record=attempt.record,
        rollout=attempt,
        reward=attempt.reward,
    )


def first_tokens(receiver: Receiver, solution: Received[SuccessRecord], share: float) -> list[int]:
    """The first tokens of a solution in the receiver's encoding, up to `share` of its bytes.

    There is at least one, unless it would touch the box or be the whole solution.
    """
    text = solution.record.text.encode()
    content = solution.token_ids[:-1] if solution.record.finished else solution.token_ids
    ends = list(accumulate(map(len, receiver.codec.token_bytes(content))))  # in bytes

    count = max(1, bisect_right(ends, share * len(text)))
    box = text.find(BOX)
    outside = bisect_right(ends, box) if box >= 0 else len(content) - 1
    return content[: min(count, outside)]
