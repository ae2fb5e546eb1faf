"""GRAFT (arXiv 2609.37868): replace the policy's failed group with a peer's whole group.

For a receiver R and a source S:

1. candidates: the prompts on which R has no success, and S has both successes and failures
2. balance: m = the number of candidates in the direction that has fewer; the m prompts on which the
   source has the most successes are kept, ties included
3. replacement: S's whole group, successes and failures, replaces R's failed group; the advantages
   are computed inside S's group
4. compatibility: s = exp(mean log-prob of R's tokens under R,old - mean of S's tokens under S,old).
   A completion with s <= `min_compatibility` (0.8) is removed before the update, so the mean of
   the loss does not count it either. The others get the weight min(s, 1)

The token ratio is pi_R / pi_R,old for both kinds of samples, so only the weight expresses how much
the two models differ. The rest follows DAPO (`own_objective`): clip 0.2 / 0.28, token-mean loss.
Samples of grafted groups come last, so they fill the last minibatches.

    item                  paper                            here
    --------------------  -------------------------------  ----------------------------------------
    minibatches           cut by 32 prompts                cut by samples, so one group may fall
                                                           into two updates
    more than 2 policies  -                                each pair is balanced by itself; if
                                                           several sources offer a group, the one
                                                           with the most successes is chosen (our
                                                           reading)
    stored trajectories   also learns from those of a      not stored: use a frozen peer with
                          finished run, unbalanced         balanced=false instead
    incomplete groups     -                                not grafted (our reading)

With a frozen peer, set balanced=false. A strong teacher rarely fails a whole group, so there would
be no candidates in its direction, m would be 0, and it would never be allowed to help.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from mrl.advantages import group_advantages
from mrl.config import setting
from mrl.modes.mode import Experience, Mode, Received, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.modes.peers import peer_sample, source_logprobs
from mrl.objectives import OBJECTIVES, Objective
from mrl.records import RolloutRecord
from mrl.samples import Group, TrainingSample, prompt_and_completion_ids


@dataclass
class GRAFT(Mode[RolloutRecord]):
    """Replace a failed group with a peer's mixed group, weighted by compatibility."""

    name = "graft"
    consumes = RolloutRecord
    published_updates = 4
    own_objective: str = setting(
        "dapo",
        'objective of all samples ("": the setting `objective`)',
        choices=("", *OBJECTIVES),
    )
    min_compatibility: float = setting(
        0.8, "compatibility that a completion must exceed; others are not used", least=0
    )
    balanced: bool = setting(True, "transfer the same number of groups in both directions")

    @property
    def objective_of_paper(self) -> str:
        """The setting `own_objective`."""
        return self.own_objective

    def training_samples(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[RolloutRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The samples of the receiver's groups, then those of groups that replace failed ones."""
        batch = TrainingBatch()
        objective = OBJECTIVES.get(self.own_objective)  # None: the receiver's own objective
        source_of = self._sources(experiences)

        grafted: list[TrainingSample] = []
        for experience in experiences:
            group = experience.group
            source = source_of.get(group.problem.id)
            if source is None:  # no group to graft, so the receiver's group stays
                batch.samples += own_samples(receiver, group, objective)
                continue

            # 3. the source's group replaces the failed one
            of_source = [one for one in experience.received if one.record.source == source]
            grafted += self._graft(receiver, group, of_source, objective)

        batch.samples += grafted  # last, so that the receiver's samples fill the first minibatches
        batch.notes["grafted"] = len(source_of)  # number of groups
        return batch

    def _sources(self, experiences: Sequence[Experience[RolloutRecord]]) -> dict[str, str]:
        """Problem id -> the source whose group is grafted for that problem."""
        # If a record of a group was refused, the group is incomplete and is not grafted (our
        # reading). The source's largest group shows how many records a complete one has. (If every
        # group of a source lost a record in this step, this number is too small, and incomplete
        # groups are grafted.)
        full_size: dict[str, int] = {}  # by source
        for experience in experiences:
            for source, records in _by_source(experience.records).items():
                full_size[source] = max(full_size.get(source, 0), len(records))

        # 1. candidates in both directions
        # source -> problem id -> the source's successes on problems where the receiver failed
        from_source: dict[str, dict[str, int]] = defaultdict(dict)
        # source -> number of problems on which the receiver could help the source
        to_source: Counter[str] = Counter()
        for experience in experiences:
            group = experience.group
            for source, records in _by_source(experience.records).items():
                if len(records) < full_size[source]:
                    continue
                solved = sum(record.reward > 0 for record in records)
                if group.outcome == "all_fail" and 0 < solved < len(records):
                    from_source[source][group.problem.id] = solved
                if group.outcome == "mixed" and solved == 0:
                    to_source[source] += 1

        # 2. keep as many candidates as in the other direction, and for each problem the source with
        # the most successes
        best: dict[str, tuple[int, str]] = {}  # problem id -> (successes, source)
        for source, candidates in from_source.items():
            least = self._least_successes(candidates, to_source[source])
            for problem_id, solved in candidates.items():
                # if sources are equally successful, the name decides: any fixed order works
                if solved >= least and (solved, source) > best.get(problem_id, (0, "")):
                    best[problem_id] = solved, source
        return {problem_id: source for problem_id, (_, source) in best.items()}

    def _least_successes(self, candidates: dict[str, int], to_source: int) -> float:
        """How many successes a group needs: as many as the last of the `to_source` best groups.

        Groups that tie with that one are also kept, so more may come in than go out.
        """
        if not self.balanced:
            return 0
        best = sorted(candidates.values(), reverse=True)[:to_source]
        return min(best, default=math.inf)

    def _graft(
        self,
        receiver: Receiver,
        group: Group,
        of_source: Sequence[Received[RolloutRecord]],
        objective: Objective | None,
    ) -> list[TrainingSample]:
        """The source's group as samples, each with its advantage, weighted by its compatibility."""
        import torch  # not above: the settings of modes are read without torch

        scale_by_std = (objective or receiver.objective).scale_by_std

        # advantages within the source's group; the receiver's own failures are not part of it
        rewards = [received.record.reward for received in of_source]
        advantages = group_advantages(torch.tensor([rewards]), scale_by_std)[0].tolist()
        # looked up by reward, because the receiver may be unable to use some of the records
        advantage_of = dict(zip(rewards, advantages, strict=True))

        # the receiver's own log-probs, for both the ratio and the compatibility
        usable = [received for received in of_source if received.token_ids]
        samples = [peer_sample(group, received) for received in usable]
        scored = receiver.logprobs_of(*prompt_and_completion_ids(samples))

        compatible = []
        for received, sample, own_logprobs in zip(usable, samples, scored, strict=True):
            # 4. is the completion as likely for the receiver as it was for its source?
            gap = fmean(own_logprobs) - fmean(source_logprobs(received.record))
            compatibility = math.exp(min(gap, 20.0))  # cannot overflow, whatever a peer claims
            if compatibility <= self.min_compatibility:
                continue  # left out completely: with weight 0 it would count in the loss's mean

            sample.advantage = advantage_of[sample.reward]
            sample.behavior_logprobs = own_logprobs
            sample.weight = min(compatibility, 1.0)
            sample.objective = objective
            compatible.append(sample)
        return compatible


def _by_source(records: Sequence[RolloutRecord]) -> dict[str, list[RolloutRecord]]:
    by_source: dict[str, list[RolloutRecord]] = defaultdict(list)
    for record in records:
        by_source[record.source].append(record)
    return by_source
