"""Helpers of several modes: they turn a peer's completion into the receiver's tokens."""

from collections.abc import Iterable, Sequence

import torch

from mrl.advantages import group_advantages
from mrl.alignment import LossyText, project, split_text
from mrl.modes.mode import Receiver
from mrl.modes.solo import samples_with
from mrl.records import CompletionRecord, RolloutRecord
from mrl.samples import Group, TrainingSample


def retokenize(receiver: Receiver, record: CompletionRecord) -> tuple[list[int], str]:
    """Return (a peer's completion in the receiver's tokens, ""), or ([], a reason to refuse it).

    The result ends in the receiver's EOS if and only if the peer's completion was finished. The
    reasons are "refused/..." if the receiver's tokenizer cannot represent the text exactly, "empty"
    if there is no token, and "too_long" if there are more tokens than the receiver may write.
    """
    try:
        completion_ids = receiver.codec.encode(record.text)
    except LossyText as refusal:
        return [], f"refused/{refusal.reason}"

    # the peer's EOS becomes the receiver's; without it, the receiver would not learn to stop
    if record.finished:  # as an id, because EOS in the text would be refused as a special token
        completion_ids.append(receiver.eos_id)
    if not completion_ids:
        return [], "empty"
    if len(completion_ids) > receiver.max_new_tokens:
        return [], "too_long"
    return completion_ids, ""


def source_logprobs(record: RolloutRecord) -> list[float]:
    """The source's log-probs, nats, one per source token, including EOS."""
    if record.end_logprob is None:  # the completion is not finished
        return list(record.logprobs)
    return [*record.logprobs, record.end_logprob]


def project_logprobs(
    receiver: Receiver, record: RolloutRecord, completion_ids: Sequence[int]
) -> tuple[list[float], list[int]]:
    """The source's log-probs at the receiver's tokens, and each token's chunk.

    The sum over a chunk is exact; within the chunk it is spread by bytes (see alignment.project).
    The EOS tokens of both sides form a chunk of their own.
    """
    content = completion_ids[:-1] if record.finished else completion_ids
    source_tokens = split_text(record.text, record.token_lengths)
    receiver_tokens = receiver.codec.token_bytes(content)
    spread, chunk_of = project(source_tokens, receiver_tokens, record.logprobs)

    if record.end_logprob is not None:  # EOS has no bytes, so `project` does not see it
        spread.append(record.end_logprob)
        chunk_of.append(max(chunk_of, default=-1) + 1)
    return spread, chunk_of


def peer_samples(
    receiver: Receiver, group: Group, records: Iterable[RolloutRecord]
) -> list[tuple[TrainingSample, RolloutRecord]]:
    """One training sample for each usable record, together with that record.

    Advantages and behavior log-probs are filled in later.
    """
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
    """The receiver's and its peers' samples of one prompt, with advantages over all of them."""
    # the receiver's samples get their advantages below, together with those of the peers
    samples = samples_with([0.0] * len(group.rollouts), group)
    samples += peers_samples
    rewards = torch.tensor([[sample.reward for sample in samples]])  # [1, own + peers']
    advantages = group_advantages(rewards, receiver.objective.scale_by_std)[0]

    for sample, advantage in zip(samples, advantages.tolist(), strict=True):
        sample.advantage = advantage
    return samples
