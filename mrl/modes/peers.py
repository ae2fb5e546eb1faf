"""What several modes do with a peer's text: into the receiver's tokens, or refused and counted."""

from collections.abc import Iterable, Sequence

import torch

from mrl.advantages import group_advantages
from mrl.alignment import LossyText, project, split_text
from mrl.modes.mode import Receiver, TrainingBatch
from mrl.modes.solo import samples_with
from mrl.records import RolloutRecord, SuccessRecord
from mrl.residual import measure
from mrl.samples import Group, TrainingSample


def retokenized(
    receiver: Receiver, record: RolloutRecord | SuccessRecord, batch: TrainingBatch
) -> list[int] | None:
    """A peer's completion in the receiver's tokens.

    It ends in the receiver's end token if the peer had finished, and only then. None if the
    receiver's tokenizer cannot hold the text exactly, if it has no token, or if it is longer than
    what the receiver could ever write itself. The batch counts why, and what alignment cost.
    """
    try:
        content = receiver.codec.encode(record.text)
    except LossyText as refusal:
        batch.residual[f"refused/{refusal.reason}"] += 1
        return None

    # the peer's end token becomes the receiver's own, or stopping would not be learnt
    completion_ids = list(content)
    if record.finished:  # as an id: spelled out in the text it would be refused as special
        completion_ids.append(receiver.end_id)
    if not completion_ids:
        batch.dropped["empty"] += 1
        return None
    if len(completion_ids) > receiver.max_new_tokens:
        batch.dropped["too_long"] += 1
        return None

    # for the log alone: how far the two tokenizations of the text lie apart
    source_tokens = split_text(record.text, record.token_lengths)
    receiver_tokens = receiver.codec.token_bytes(content)
    batch.residual.update(measure(source_tokens, receiver_tokens, record.canonical))
    return completion_ids


def source_logprobs(record: RolloutRecord) -> list[float]:
    """The source's log-probs, one per source token, its end token included."""
    if record.finished:
        return [*record.logprobs, record.end_logprob]
    return list(record.logprobs)


def projected(
    receiver: Receiver, record: RolloutRecord, completion_ids: Sequence[int]
) -> tuple[list[float], list[int]]:
    """The source's log-probs at the receiver's tokens, and each token's chunk.

    Exact as sums over a chunk, spread by bytes within it (alignment.project). The two end
    tokens are a chunk of their own.
    """
    content = completion_ids[:-1] if record.finished else completion_ids
    source_tokens = split_text(record.text, record.token_lengths)
    receiver_tokens = receiver.codec.token_bytes(content)
    spread, chunk_of = project(source_tokens, receiver_tokens, record.logprobs)

    if record.finished:  # no bytes, so `project` does not see it
        spread.append(record.end_logprob)
        chunk_of.append(max(chunk_of, default=-1) + 1)
    return spread, chunk_of


def peer_samples(
    receiver: Receiver, group: Group, records: Iterable[RolloutRecord], batch: TrainingBatch
) -> list[tuple[TrainingSample, RolloutRecord]]:
    """A training sample for each record that survives; advantage and behaviour still missing."""
    samples = []
    for record in records:
        completion_ids = retokenized(receiver, record, batch)
        if completion_ids is None:
            continue
        sample = TrainingSample(
            group.prompt_ids, completion_ids, source=record.source, reward=record.reward
        )
        samples.append((sample, record))
    return samples


def pool_with_advantages(
    receiver: Receiver, group: Group, peers_samples: Sequence[TrainingSample]
) -> list[TrainingSample]:
    """Own and peers' samples of one prompt, each with its advantage among all of them."""
    # own advantages are not known before the peers' rewards are beside them
    samples = [*samples_with([0.0] * len(group.rollouts), group), *peers_samples]
    rewards = torch.tensor([[sample.reward for sample in samples]])  # [1, own + peers']
    advantages = group_advantages(rewards, receiver.objective.scale_by_std)[0]

    for sample, advantage in zip(samples, advantages.tolist(), strict=True):
        sample.advantage = advantage
    return samples
