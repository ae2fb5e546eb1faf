"""What the program answers to a wrong call: the thing that was meant, in plain words."""

import pytest

import mini_mrl
import mrl
from mrl.errors import MrlError
from mrl.settings.read import run_config


def said(capfd, *arguments):
    assert mini_mrl.main(list(arguments)) == 2
    answer = capfd.readouterr().err
    assert len(answer.splitlines()) == 1
    return answer


def test_a_setting_of_another_mode_is_found_in_the_mode_of_the_run_first():
    with pytest.raises(MrlError, match=r"`replay\.imitation_weight`"):
        run_config(None, None, {"mode": "replay"}, ["imitation_weight=1"])


def test_train_may_be_written_and_the_command_line_says_what_it_is(capfd):
    assert "`sgt`" in said(capfd, "train", "--mode", "stg")
    for option in ("-h", "--help"):
        assert mini_mrl.main([option]) == 0
        assert "--steps" in capfd.readouterr().out
        assert mini_mrl.main(["compare", option]) == 0
        assert "--seeds" in capfd.readouterr().out
    assert mini_mrl.main(["--version"]) == 0
    assert capfd.readouterr().out.split() == ["mini-mrl", mrl.__version__]


def test_a_tiny_model_may_be_named_without_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = run_config("qwen-tiny,llama-tiny", None, {}, [])
    assert both.policies == run_config("tiny", None, {}, []).policies
    (tmp_path / "qwen-tiny").mkdir()  # an own folder of that name comes first
    with pytest.raises(MrlError, match=r"qwen-tiny.*config\.json"):
        run_config("qwen-tiny", None, {}, [])


def test_a_line_break_on_the_command_line_may_be_written_as_in_toml():
    for template in ("template=Q: {prompt}\\nA:", 'template="Q: {prompt}\\nA:"'):
        (policy, _) = run_config("tiny", None, {}, [template]).policies
        assert policy.template == "Q: {prompt}\nA:"


def test_without_a_network_nothing_is_tried_again(monkeypatch):
    from mrl.models import loading

    asked = []

    def load(path, **options):
        asked.append(options["local_files_only"])
        raise OSError("not found")

    monkeypatch.setattr(loading, "hub_answers", lambda: False)
    with pytest.raises(MrlError, match="hub cannot be reached"):
        loading._load(load, "nobody/nothing", "weights")
    monkeypatch.setattr(loading, "hub_answers", lambda: True)
    with pytest.raises(MrlError, match="not found"):
        loading._load(load, "nobody/nothing", "weights")
    assert asked == [True, False]
