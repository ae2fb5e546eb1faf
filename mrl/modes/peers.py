"""What several modes do with a peer's text: into the receiver's tokens, or refused."""

from collections.abc import Iterable, Sequence

import torch

from mrl.advantages import group_advantages
from mrl.alignment import LossyText, project, split_text
from mrl.modes.mode import Receiver
from mrl.modes.solo import samples_with
from mrl.records import RolloutRecord, SuccessRecord
from mrl.samples import Group, TrainingSample


def retokenize(receiver: Receiver, record: RolloutRecord | SuccessRecord) -> tuple[list[int], str]:
    """A peer's completion in the receiver's tokens, and ""; or no tokens, and why.

    It ends in the receiver's end token if the peer had finished, and only then. The reasons are
    "refused/...", if the receiver's tokenizer cannot hold the text exactly, "empty", if it has no
    token, and "too_long", if it is longer than what the receiver could ever write itself.
    """
    try:
        completion_ids = receiver.codec.encode(record.text)
    except LossyText as refusal:
        return [], f"refused/{refusal.reason}"

    # the peer's end token becomes the receiver's own, or stopping would not be learnt
    if record.finished:  # as an id: spelled out in the text it would be refused as special
        completion_ids.append(receiver.eos_id)
    if not completion_ids:
        return [], "empty"
    if len(completion_ids) > receiver.max_new_tokens:
        return [], "too_long"
    return completion_ids, ""


def source_logprobs(record: RolloutRecord) -> list[float]:
    """The source's log-probs, one per source token, its end token included."""
    if record.finished:
        return [*record.logprobs, record.end_logprob]
    return list(record.logprobs)


def project_logprobs(
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
    receiver: Receiver, group: Group, records: Iterable[RolloutRecord]
) -> list[tuple[TrainingSample, RolloutRecord]]:
    """A training sample for each record that survives; advantage and behaviour still missing."""
    samples = []
    for record in records:
        completion_ids, refusal = retokenize(receiver, record)
        if refusal:
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
    samples = samples_with([0.0] * len(group.rollouts), group)
    samples += peers_samples
    rewards = torch.tensor([[sample.reward for sample in samples]])  # [1, own + peers']
    advantages = group_advantages(rewards, receiver.objective.scale_by_std)[0]

    for sample, advantage in zip(samples, advantages.tolist(), strict=True):
        sample.advantage = advantage
    return samples
