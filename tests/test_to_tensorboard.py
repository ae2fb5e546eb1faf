"""The examples that show curves in TensorBoard and trackio, which the program never needs."""

import json
import runpy
import sys
from types import SimpleNamespace

import pytest

from mrl.config import DATA

EXAMPLE = DATA / "examples" / "to_tensorboard.py"
TRACKIO = DATA / "examples" / "to_trackio.py"
LINES = [
    {"step": step, "policy": name, "reward": step / 4, "time/turns": [["learn", 0.0, 1.0, 0]]}
    for step in (1, 2)
    for name in ("left", "right")
]


def run_example(monkeypatch, folder, example=EXAMPLE):
    monkeypatch.setattr(sys, "argv", [str(example), str(folder)])
    runpy.run_path(str(example), run_name="__main__")


@pytest.fixture
def run(tmp_path):
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def test_every_number_of_every_policy_is_written_at_its_step(monkeypatch, run):
    written = []

    class Writer:
        def __init__(self, folder):
            self.folder = folder

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def add_scalar(self, key, value, step):
            written.append((self.folder.name, key, value, step))

    stub = SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stub)
    run_example(monkeypatch, run)
    rewards = [call for call in written if call[1] == "reward"]
    wanted = [(name, "reward", step / 4, step) for name in ("left", "right") for step in (1, 2)]
    assert rewards == wanted
    assert not any(key == "time/turns" for _, key, _, _ in written)


def test_tensorboard_reads_what_it_wrote_also_the_second_time(monkeypatch, run):
    why = "TensorBoard is not installed: the example needs it, the program does not"
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason=why
    )
    for _ in range(2):
        run_example(monkeypatch, run)
    events = reader.EventAccumulator(str(run / "tensorboard" / "right")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward")] == [
        (1, 0.25),
        (2, 0.5),
    ]


def test_without_tensorboard_it_says_what_to_do(monkeypatch, run, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SystemExit) as stop:
        run_example(monkeypatch, run)
    assert stop.value.code == 2
    assert "pip install tensorboard" in capsys.readouterr().err


def test_a_folder_without_a_run_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=None))
    with pytest.raises(SystemExit) as stop:
        run_example(monkeypatch, tmp_path / "nothing")
    assert stop.value.code == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def test_trackio_gets_every_number_at_its_step_and_one_run_per_policy(monkeypatch, run):
    calls = []
    stub = SimpleNamespace(
        delete_project=lambda project, force: calls.append(("delete", project)),
        init=lambda project, name, **more: calls.append(("init", project, name)),
        log=lambda numbers, step: calls.append(("log", step, numbers)),
        finish=lambda: calls.append(("finish",)),
    )
    monkeypatch.setitem(sys.modules, "trackio", stub)
    run_example(monkeypatch, run, TRACKIO)
    project = f"mini-mrl-{run.name}"
    logged = [("log", step, {"reward": step / 4}) for step in (1, 2)]
    assert calls == [
        ("delete", project),
        *(("init", project, "left"), *logged, ("finish",)),
        *(("init", project, "right"), *logged, ("finish",)),
    ]


def test_without_trackio_it_says_what_to_do(monkeypatch, run, capsys):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(SystemExit) as stop:
        run_example(monkeypatch, run, TRACKIO)
    assert stop.value.code == 2
    assert "pip install trackio" in capsys.readouterr().err
