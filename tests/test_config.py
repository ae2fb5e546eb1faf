import pytest

from mrl.config import (
    PolicyConfig,
    RunConfig,
    check,
    config_toml,
    load_config,
    parse_settings,
    policies_from_paths,
    tiny_pair,
)
from mrl.errors import MrlError


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
clip_high = 0.3
"""
    )
    config = RunConfig(**load_config(path))
    one, two = config.policies
    assert (one.name, one.group_size, one.learning_rate, one.objective) == ("one", 4, 1.0, "gspo")
    assert (two.name, two.template, two.clip_high) == ("second", "Q: {prompt}", 0.3)
    assert (config.mode, config.steps, config.heldout) == ("solo", 7, ["a.jsonl", "b.jsonl"])
    assert config.settings == {"sgt": {"imitation_weight": 0.3}}
    check(config)


def test_what_a_run_writes_down_reads_back_as_it_was(tmp_path):
    config = RunConfig(tiny_pair(), name='odd "name"\\', settings={"sgt": {"imitation_weight": 2}})
    config.policies[0].template = 'line\nbreak\t"{prompt}" \u2028'
    config.policies[1].clip_low = 0.25
    path = tmp_path / "config.toml"
    path.write_text(config_toml(config), encoding="utf-8")
    assert RunConfig(**load_config(path)) == config


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("stpes = 3", "there is no setting `stpes`; did you mean `steps`?"),
        ("steps = 'many'", "steps is 'many', but must be of type int"),
        ("steps = 1.5", "must be of type int"),
        ("steps = true", "must be of type int"),
        ("verify_timeout_s = nan", "must be a finite number"),
        ("heldout = 'x'", "heldout is 'x'"),
        ("heldout = [1]", "heldout is [1]"),
        ("steps = ", "is not TOML"),
        ("[policy]\npath = 'x'", "[[policy]]"),
        ("[[policy]]\nname = 'x'", "[[policy]] number 1: `path` is missing"),
        ("[[policy]]\npath = 'x'\ngroupsize = 3", "did you mean `group_size`"),
        ("policies = 3", "there is no setting `policies`; did you mean `policy`?"),
        ("zzz = 1", "known are"),
    ],
)
def test_a_wrong_config_file_gets_one_sentence_with_the_place(tmp_path, text, part):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(MrlError) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert part in str(caught.value)


def test_a_missing_config_file(tmp_path):
    with pytest.raises(MrlError, match="cannot be read"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("run", "policy", "part"),
    [
        ({}, {"group_size": 1}, "an advantage compares completions"),
        ({}, {"objective": "grop"}, "did you mean `grpo`"),
        ({}, {"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({}, {"temperature": 0.0}, "temperature"),
        ({}, {"max_new_tokens": 0}, "max_new_tokens"),
        ({}, {"clip_low": -0.1}, "clip_low"),
        ({}, {"weight_decay": -1.0}, "weight_decay"),
        ({}, {"template": "no place"}, "lacks {prompt}"),
        ({}, {"name": "../x"}, "policy's name"),
        ({}, {"learning_rate": float("nan")}, "learning_rate is nan"),
        ({}, {"learning_rate": float("inf")}, "learning_rate is inf"),
        ({}, {"learning_rate": 5.0}, "1e-4 is usual"),
        ({"threads": 1_000_000}, {}, "256 or less"),
        (
            {"peer_log": "x", "policies": [PolicyConfig("a", "x"), PolicyConfig("b", "y")]},
            {},
            "only one policy",
        ),
        ({"steps": 0}, {}, "steps is 0"),
        ({"prompts_per_step": 0}, {}, "prompts_per_step is 0"),
        ({"seed": -1}, {}, "seed is -1"),
        ({"max_staleness": -1}, {}, "max_staleness"),
        ({"verify_timeout_s": 0.0}, {}, "verify_timeout_s"),
        ({"policies": []}, {}, "no policy"),
    ],
)
def test_values_that_cannot_work_are_refused(run, policy, part):
    values = {"policies": [PolicyConfig(**{"name": "p", "path": "x", **policy})], **run}
    with pytest.raises(MrlError) as caught:
        check(RunConfig(**values))
    assert part in str(caught.value)


def test_two_policies_of_one_name_are_refused_and_pairs_of_one_path_get_two_names():
    with pytest.raises(MrlError, match="called 'p'"):
        check(RunConfig([PolicyConfig("p", "x"), PolicyConfig("p", "y")]))
    names = [policy.name for policy in policies_from_paths(["m/a", "m/a", "m/b"])]
    assert names == ["a", "a-2", "b"]
    check(RunConfig(policies_from_paths(["m/a", "n/a", "o/a"])))


def test_settings_from_the_command_line():
    got = parse_settings(["sgt.imitation_weight=0.3", "x.on=true", "x.word=abc"], {"x": {"n": 1}})
    assert got == {"sgt": {"imitation_weight": 0.3}, "x": {"n": 1, "on": True, "word": "abc"}}
    for wrong in ("sgt", "sgt.x", "=3", ".x=1", "sgt=1"):
        with pytest.raises(MrlError, match="write it as mode"):
            parse_settings([wrong], {})
