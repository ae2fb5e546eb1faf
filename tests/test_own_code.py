"""What a mode of one's own hands back: one sentence for a batch that cannot be learnt from."""

import json
import sys

import numpy as np
import pytest
import torch

from mrl.errors import MrlError
from mrl.modes import TrainingBatch
from mrl.modes.check import check_batch
from mrl.modes.solo import Solo
from mrl.objectives import Objective
from mrl.samples import TrainingSample
from tests.fakes import success
from tests.sentences import names_it

CHUNKS = Objective("chunk", "sequence", 0.2, 0.2)


class Own(Solo):
    """As a student would write it, in this file."""


def batch_with(**changes):
    """A batch of one own sample that is as it should be but for the changes."""
    sample = TrainingSample([1, 2], [3, 4], advantage=1.0, behavior_logprobs=[-0.5, -0.5])
    for name, value in changes.items():
        setattr(sample, name, value)
    return TrainingBatch([sample])


@pytest.mark.parametrize(
    ("batch", "part"),
    [
        (None, "NoneType TrainingBatch"),
        ([], "list TrainingBatch"),
        (batch_with(completion_ids=[10**6]), "completion_ids"),
        (batch_with(completion_ids=[-1]), "completion_ids"),
        (batch_with(completion_ids=[]), "completion_ids"),
        (batch_with(prompt_ids=None), "prompt_ids"),
        (batch_with(weight=float("nan")), "weight nan"),
        (batch_with(record=success("x", source="qwen-tiny")), "record"),
        (batch_with(loss="nll"), "loss nll"),
        (batch_with(behavior_logprobs=[0.0]), "1 behavior_logprobs 2 completion_ids"),
        (batch_with(objective=CHUNKS), "0 chunk_of 2 completion_ids"),
    ],
)
def test_a_mistake_is_named_with_the_modes_file(make_policy, batch, part):
    with pytest.raises(MrlError) as caught:
        check_batch(batch, Own(), make_policy())
    assert str(caught.value).startswith(f"{__file__}: training_samples of Own ")
    assert names_it(str(caught.value), part)


@pytest.mark.parametrize(
    "note", ["0.5", b"1", None, [1.0], torch.zeros(2), np.zeros(2), 1j, 10**400]
)
def test_a_note_that_is_no_number_is_refused_before_learning(make_policy, note):
    batch = batch_with()
    batch.notes["share"] = note
    with pytest.raises(MrlError, match="'share'"):
        check_batch(batch, Own(), make_policy())


def test_a_note_that_holds_one_number_becomes_a_plain_one(make_policy):
    batch = batch_with()
    batch.notes = {"a": torch.tensor(0.5), "b": np.float32(0.5), "c": 3, "d": torch.tensor([2])}
    notes = check_batch(batch, Own(), make_policy()).notes
    assert json.loads(json.dumps(notes)) == {"a": 0.5, "b": 0.5, "c": 3, "d": 2.0}
    assert type(notes["c"]) is int


@pytest.mark.parametrize("module", ["__main__", "nowhere"])
def test_a_mode_without_a_file_as_in_a_notebook_is_checked_too(make_policy, monkeypatch, module):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    cell = type("Cell", (Solo,), {"__module__": module})
    batch = batch_with()
    assert check_batch(batch, cell(), make_policy()) is batch
    with pytest.raises(MrlError, match=f"{module}.*Cell"):
        check_batch(None, cell(), make_policy())
