import importlib.util
import sys
from types import ModuleType, SimpleNamespace

from mrl.experiment import tensorboard
from mrl.experiment.tensorboard import scalar_writer

LINE = {"step": 3, "policy": "a", "reward": 0.5, "updates": 1, "time/turns": [["learn", 0, 1, 0]]}


def test_without_tensorboard_nothing_is_written_and_nothing_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    assert scalar_writer(tmp_path)(LINE) is None
    assert list(tmp_path.iterdir()) == []


def test_numbers_become_scalars_of_their_policy_and_lists_do_not(tmp_path, monkeypatch):
    """Against a stand-in for torch.utils.tensorboard, whether it is installed or not."""
    written, module = [], ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda path: SimpleNamespace(
        add_scalar=lambda *about: written.append((path, *about)), flush=lambda: None
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: importlib.util.find_spec("json"))
    scalar_writer(tmp_path)(LINE)
    place = str(tmp_path / "tensorboard")
    assert written == [(place, "a/reward", 0.5, 3), (place, "a/updates", 1, 3)]
