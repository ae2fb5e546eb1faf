"""Helpers of several modes: they turn a peer's completion into a training sample."""

from collections.abc import Sequence
from typing import TypeVar

from mrl.advantages import group_advantages
from mrl.alignment import project, split_text
from mrl.modes.mode import Received, Receiver
from mrl.modes.own import samples_with
from mrl.records import RolloutRecord, SuccessRecord
from mrl.reward import Verdict
from mrl.samples import Group, TrainingSample

Text = TypeVar("Text", RolloutRecord, SuccessRecord)  # the types of record that hold a text


def peer_sample(
    group: Group, received: Received[Text], loss: str = "policy", weight: float = 1.0
) -> TrainingSample:
    """A peer's completion as a training sample for the prompt of a group.

    The modes fill in the advantage and the behavior log-probs of a "policy" sample later.
    """
    return TrainingSample(
        prompt_ids=group.prompt_ids,
        completion_ids=received.token_ids,
        loss=loss,
        weight=weight,
        record=received.record,
        reward=float(received.record.verdict == Verdict.CORRECT),
    )


def source_logprobs(record: RolloutRecord) -> list[float]:
    """The source's log-probs, nats, one per source token, including EOS."""
    if record.end_logprob is None:  # the completion is not finished
        return list(record.logprobs)
    return [*record.logprobs, record.end_logprob]


def project_logprobs(
    receiver: Receiver, received: Received[RolloutRecord]
) -> tuple[list[float], list[int]]:
    """The source's log-probs at the receiver's tokens, and each token's chunk.

    The sum over a chunk is exact; within the chunk it is spread by bytes (see alignment.project).
    The EOS tokens of both sides form a chunk of their own.
    """
    record, content = received.record, received.token_ids
    if record.finished:
        content = content[:-1]
    source_tokens = split_text(record.text, record.token_lengths)
    receiver_tokens = receiver.codec.token_bytes(content)
    spread, chunk_of = project(source_tokens, receiver_tokens, record.logprobs)

    if record.end_logprob is not None:  # EOS has no bytes, so `project` does not see it
        spread.append(record.end_logprob)
        chunk_of.append(max(chunk_of, default=-1) + 1)
    return spread, chunk_of


def pool_with_advantages(
    receiver: Receiver, group: Group, peers_samples: Sequence[TrainingSample]
) -> list[TrainingSample]:
    """The receiver's and its peers' samples of one prompt, with advantages over all of them."""
    import torch  # not above: the settings of modes are read without torch

    # the receiver's samples get their advantages below, together with those of the peers
    samples = samples_with([0.0] * len(group.rollouts), group)
    samples += peers_samples
    rewards = torch.tensor([[sample.reward for sample in samples]])  # [1, own + peers']
    advantages = group_advantages(rewards, receiver.objective.scale_by_std)[0]

    for sample, advantage in zip(samples, advantages.tolist(), strict=True):
        sample.advantage = advantage
    return samples
