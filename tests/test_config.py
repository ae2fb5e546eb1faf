import inspect
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.run.directory import (
    continued_config,
    new_directory,
    read_run_config,
    write_run_config,
)
from mrl.settings.pairs import pair_settings
from mrl.settings.read import check, complete, load_config, make_mode, run_config


def test_a_config_file_that_uses_everything(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        """
mode = "solo"
steps = 7
heldout = ["a.jsonl", "b.jsonl"]
[settings.sgt]
imitation_weight = 0.3
[[policy]]
path = "models/one"
group_size = 4
learning_rate = 1
objective = "gspo"
[[policy]]
name = "second"
path = "models/two"
template = "Q: {prompt}"
kl_coef = 0.3
"""
    )
    config = complete(load_config(path))
    one, two = config.policies
    assert (one.name, one.group_size, one.learning_rate, one.objective) == ("one", 4, 1.0, "gspo")
    assert (two.name, two.template, two.kl_coef) == ("second", "Q: {prompt}", 0.3)
    assert (config.mode, config.steps, config.heldout) == ("solo", 7, ["a.jsonl", "b.jsonl"])
    assert config.settings == {"sgt": {"imitation_weight": 0.3}}
    check(config)


def test_what_a_run_writes_down_reads_back_as_it_was(tmp_path):
    odd = {"name": 'odd "name"\\', "settings": {"sgt": {"imitation_weight": 2}}}
    config = complete(pair_settings("tiny") | odd)
    assert {policy.dtype for policy in config.policies} == {"float32"}  # on a GPU as on a CPU
    config.policies[0].template = 'line\nbreak\t"{prompt}" \u2028'
    config.policies[1].kl_coef = 0.25
    write_run_config(tmp_path, config)
    assert read_run_config(tmp_path) == config


def test_a_config_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "run.toml").write_text("steps = 3", encoding="utf-8-sig")
    assert load_config(tmp_path / "run.toml") == {"steps": 3}


def test_a_number_of_a_policy_made_in_python_may_not_be_nan():
    with pytest.raises(MrlError, match="kl_coef is nan"):
        check(RunConfig([PolicyConfig("p", "x", kl_coef=float("nan"))]))


def test_two_policies_of_one_name_are_refused_and_pairs_of_one_path_get_two_names(monkeypatch):
    small = SimpleNamespace(num_parameters=lambda: 1)
    monkeypatch.setattr("mrl.models.loading.shape_of", lambda config: small)
    with pytest.raises(MrlError, match="'p'"):
        check(RunConfig([PolicyConfig("p", "x"), PolicyConfig("p", "y")]))
    names = [policy["name"] for policy in pair_settings("m/a,m/a,m/b")["policies"]]
    assert names == ["a", "a-2", "b"]
    assert [policy["path"] for policy in pair_settings("m/a, m/b")["policies"]] == ["m/a", "m/b"]
    check(complete(pair_settings("m/a,n/a,o/a")))


def of_size(parameters):
    """What stands for a model of this size."""
    return lambda config: SimpleNamespace(num_parameters=lambda: int(parameters))


@pytest.mark.parametrize(
    ("parameters", "mode", "given", "rate", "updates"),
    [
        (8e5, "sgt", "", 3e-5, 4),  # as small as the tiny pair
        (8e5, "hacpo", "updates_per_step = 2", 3e-5, 2),
        (135e6, "sgt", "", 3e-5, 1),
        (494e6, "sgt", "", 2e-6, 1),
        (494e6, "sgt", "lora_rank = 8", 2e-5, 1),
        (494e6, "hacpo", "", 2e-6, 4),  # as in its paper
        (494e6, "sgt", "learning_rate = 1e-5", 1e-5, 1),
        (7e9, "graft", "", 1e-6, 4),
    ],
)
def test_what_no_one_named_follows_from_size_and_mode(
    tmp_path, monkeypatch, parameters, mode, given, rate, updates
):
    monkeypatch.setattr("mrl.models.loading.shape_of", of_size(parameters))
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(f"[[policy]]\npath = 'm/own'\n{given}")
    config = made(file=Path("run.toml"), mode=mode)
    (policy,) = config.policies
    assert (policy.learning_rate, policy.updates_per_step) == (rate, updates)
    write_run_config(tmp_path, config)
    assert "null" not in (tmp_path / "config.json").read_text()


def test_the_declared_values_are_those_of_the_tiny_pair():
    for policy in made().policies:
        prompt = policy.system_prompt  # of data/words
        assert policy == PolicyConfig(
            policy.name, policy.path, dtype="float32", system_prompt=prompt
        )


def made(*settings, pair=None, file=None, **given):
    return run_config(pair, file, given, settings)


def test_set_reaches_run_policies_one_policy_and_mode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("my.jsonl", "a.jsonl", "a", "b"):
        Path(name).write_text("")
    config = made(
        "qwen-tiny.objective=gspo", "objective=dapo", "kl_coef=1", "gradient_checkpointing=true",
        "llama-tiny.template={prompt}?", "name=mine", "prompts_per_step=3", "train=my.jsonl",
        "heldout=a.jsonl", "liar=0.5", "sgt.imitation_weight=0.3", "updates_per_step=2",
    )  # fmt: skip
    qwen, llama = config.policies
    assert (qwen.objective, llama.objective) == ("gspo", "dapo")  # the nearer one, in any order
    assert (qwen.kl_coef, llama.gradient_checkpointing, llama.template) == (
        1.0,
        True,
        "{prompt}?",
    )
    assert (config.prompts_per_step, config.train, config.heldout) == (3, "my.jsonl", ["a.jsonl"])
    assert (config.liar, config.name, qwen.name) == (0.5, "mine", "qwen-tiny")
    assert config.settings == {"sgt": {"imitation_weight": 0.3}}
    assert (qwen.updates_per_step, llama.updates_per_step) == (2, 2)
    assert made('heldout=["a", "b"]').heldout == made("heldout=a, b").heldout == ["a", "b"]
    for number, policy in enumerate(made("group_size=3").policies):
        assert policy.group_size == 3, number


def test_a_tilde_is_the_home_directory_in_every_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("t.jsonl", "h.jsonl", "judge.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "own.py").write_text(
        "from mrl.modes.solo import Solo\nclass Own(Solo):\n    name = 'own'\n"
    )
    shutil.copytree(DATA / "tiny" / "qwen-tiny", tmp_path / "m")
    (tmp_path / "c.toml").write_text('runs = "~/runs"\njudge = "~/judge.py"\n')
    texts = ["train=~/t.jsonl", "heldout=~/h.jsonl,~/t.jsonl", "reference=~/m"]
    config = made(*texts, pair="~/m,~/m", file=Path("~/c.toml"), mode="~/own.py:Own")
    (one, two), at = config.policies, str(tmp_path)
    assert {one.path, two.path, one.reference} == {f"{at}/m"}
    assert [config.runs, config.train, config.judge] == [
        f"{at}/runs", f"{at}/t.jsonl", f"{at}/judge.py"
    ]  # fmt: skip
    assert config.heldout == [f"{at}/h.jsonl", f"{at}/t.jsonl"]
    assert set(config.checksums) == {
        f"{at}/{n}" for n in ("t.jsonl", "h.jsonl", "judge.py", "own.py", "m")
    }


def test_the_models_that_a_run_still_reads_must_not_change(tmp_path, monkeypatch):
    """A frozen teacher, the base of adapters, a reference; others until there is a checkpoint."""
    monkeypatch.chdir(tmp_path)
    names = ("plain", "base", "teacher", "penalty")
    for name in names:
        shutil.copytree(DATA / "tiny" / "qwen-tiny", name)
    settings = ("base.lora_rank=4", "teacher.frozen=true", "penalty.kl_coef=0.1")
    write_run_config(tmp_path, made(*settings, pair=",".join(names)))

    def refused(name):
        file = tmp_path / name / "model.safetensors"
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b"x")
        with pytest.raises(MrlError, match=f"^{name} has changed"):
            check(continued_config(tmp_path))
        file.write_bytes(content)

    for name in names:
        refused(name)
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    for name in names[1:]:
        refused(name)
    shutil.rmtree("plain")
    check(continued_config(tmp_path))
    (tmp_path / "teacher" / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    with pytest.raises(MrlError, match="teacher has changed"):
        check(continued_config(tmp_path))


def test_a_run_finds_the_programs_own_data_in_another_checkout(tmp_path, monkeypatch):
    write_run_config(tmp_path, made(mode="solo"))
    kept = (tmp_path / "config.json").read_text()
    assert str(DATA) not in kept
    assert read_run_config(tmp_path).train == str(DATA / "words" / "train.jsonl")
    monkeypatch.setattr("mrl.settings.read.DATA_HERE", '"/other place/data/')
    config = read_run_config(tmp_path)
    assert config.train == "/other place/data/words/train.jsonl" in config.checksums
    assert config.policies[0].path == "/other place/data/tiny/qwen-tiny"


def test_settings_of_another_compared_mode_are_left_out_and_unknown_ones_are_refused(tmp_path):
    (tmp_path / "c.toml").write_text("[settings.unlisted]\nx = 1\n[settings.sgt]\n")
    file = tmp_path / "c.toml"
    config = run_config(None, file, {"mode": "solo"}, (), ("solo", "unlisted", "sgt"))
    assert config.settings == {}
    with pytest.raises(MrlError, match="unlisted"):
        run_config(None, file, {"mode": "solo"}, (), ("solo", "sgt"))


def test_options_win_over_the_file_and_the_file_over_the_pair(tmp_path, random_pair, monkeypatch):
    random = random_pair / "llama-tiny"
    path = tmp_path / "run.toml"
    path.write_text("steps = 7\nseed = 7\nmode = 'graft'\n[settings.graft]\nbalanced = false")
    config = made("seed=9", "graft.min_compatibility=0.5", file=path, steps=8, name=None)
    assert (config.steps, config.seed, config.mode, len(config.policies)) == (8, 9, "graft", 2)
    assert config.settings == {"graft": {"balanced": False, "min_compatibility": 0.5}}
    monkeypatch.setattr("mrl.models.loading.shape_of", of_size(1e6))
    path.write_text("[[policy]]\npath = 'm/own'\ngroup_size = 2")
    assert [policy.name for policy in made(file=path).policies] == ["own"]
    assert [policy.name for policy in made(file=path, pair=str(random)).policies] == ["llama-tiny"]
    assert made(pair="qwen-smol").eval_samples == 1  # the preset of the real pair
    assert made("eval_samples=2", pair="qwen-smol").eval_samples == 2


def test_a_mode_file_may_postpone_annotations_and_have_any_name(tmp_path):
    text = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Optional
from mrl.config import setting
from mrl.modes.sgt import SGT

@dataclass
class Mine(SGT):
    name = "mine"
    often: int = setting(2, "how often", least=1)
    most: int | None = setting(None, "at most so often")
    word: Optional[str] = setting(None, "any")
"""
    path = tmp_path / "a:b" / "random.py"  # a colon in a directory's name
    path.parent.mkdir()
    path.write_text(text)
    mode = make_mode(f"{path}:Mine", {"mine": {"often": 3, "most": 4, "word": "x"}})
    assert (mode.often, mode.most, mode.word) == (3, 4, "x")
    assert inspect.getfile(type(mode)) == str(path)
    assert "often: int" in inspect.getsource(type(mode))
    with pytest.raises(MrlError, match=r"most is 1.5, but must be a whole number"):
        make_mode(f"{path}:Mine", {"mine": {"most": 1.5}})
    assert hasattr(sys.modules["random"], "Random")  # the library's


def test_a_file_of_ones_own_is_run_once_for_a_run_and_again_when_it_has_changed(tmp_path):
    log, path = tmp_path / "log", tmp_path / "mine.py"
    text = f"""
from mrl.modes.sgt import SGT
class Mine(SGT):
    name = "mine"
    kept = 0
with open({str(log)!r}, "a") as log:
    log.write("run ")
"""
    path.write_text(text)
    config = made("mine.imitation_weight=2", mode=f"{path}:Mine", runs=str(tmp_path))
    assert new_directory(config).name == "mine-s0"
    one, two = (make_mode(config.mode, config.settings) for _ in config.policies)
    one.kept = 3
    assert (one.imitation_weight, two.imitation_weight, two.kept) == (2, 2, 0)
    assert log.read_text() == "run "
    path.write_text(text.replace("kept = 0", "kept = 1"))
    assert make_mode(config.mode, {}).kept == 1


def test_a_mode_named_by_set_has_its_settings_in_the_file(tmp_path):
    code, path = tmp_path / "mine.py", tmp_path / "run.toml"
    code.write_text("from mrl.modes.sgt import SGT\nclass Mine(SGT):\n    name = 'unlisted'\n")
    path.write_text("[settings.unlisted]\nimitation_weight = 0.5")
    config = made(f"mode={code}:Mine", file=path)
    assert config.settings == {"unlisted": {"imitation_weight": 0.5}}
    with pytest.raises(MrlError, match=r"settings\.unlisted.*no mode `unlisted`"):
        made(file=path)


def test_a_run_keeps_its_paths_as_they_were_given(tmp_path, monkeypatch, random_pair):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama-tiny").symlink_to(random_pair / "llama-tiny")
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).touch()
    own = "from mrl.modes.sgt import SGT\nclass Mine(SGT):\n    name = 'mine'\n"
    (tmp_path / "my.py").write_text(own)
    settings = "train=a.jsonl", "heldout=b.jsonl", "reference=llama-tiny"
    config = made(*settings, pair="./llama-tiny", mode="my.py:Mine")
    assert (config.train, config.mode) == ("a.jsonl", "my.py:Mine")
    write_run_config(tmp_path, config)
    assert read_run_config(tmp_path) == config
