"""Models that are not whole: refused in one sentence, instead of trained with random weights."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mrl.config import PolicyConfig
from mrl.errors import MrlError
from mrl.models.loading import load_model, load_policy, load_tokenizer, shape_of
from mrl.run.directory import save_tokenizer
from mrl.settings.pairs import pair_settings
from tests.sentences import names_it

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def copied(random_pair, tmp_path):
    """A function that copies one of the random pair, to be damaged."""

    def copy(name="qwen-tiny"):
        return shutil.copytree(random_pair / name, tmp_path / name)

    return copy


def refused(path, names):
    with pytest.raises(MrlError) as caught:
        load_policy(PolicyConfig("x", str(path)))
    sentence = str(caught.value)
    assert sentence.startswith(str(path))
    assert "\n" not in sentence
    assert names_it(sentence, names)


def change_weights(path, change):
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors", {"format": "pt"})


def change_config(path, **values):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | values))


def test_missing_tensors_are_not_made_up(copied, capfd):
    path = copied()
    missing = [f"model.layers.{n}.mlp.up_proj.weight" for n in range(2)]
    change_weights(path, lambda weights: [weights.pop(name) for name in missing])
    refused(path, f"config.json 2 {missing[0]}")
    assert capfd.readouterr().err == ""  # transformers would print a table


@pytest.mark.parametrize(
    ("name", "other", "part"),
    [
        ("qwen-tiny", "llama", "self_attn.k_proj.bias"),  # are left over
        ("llama-tiny", "qwen2", "self_attn.k_proj.bias"),  # are missing
        ("qwen-tiny", "qwen3", "self_attn.k_norm.weight"),
    ],
)
def test_weights_of_another_family_are_refused(copied, name, other, part):
    path = copied(name)
    change_config(path, model_type=other, head_dim=32)
    refused(path, f"config.json {part}")


def test_tensors_of_a_part_that_is_not_used_do_no_harm(copied):
    path = copied()
    extra = {
        "vision_tower.layers.0.weight": torch.ones(2),
        "model.layers.4.mtp.weight": torch.ones(2),
    }
    change_weights(path, lambda weights: weights.update(extra))
    load_policy(PolicyConfig("x", str(path)))


def test_layers_that_the_config_leaves_out_are_not_dropped(copied):
    path = copied()
    change_config(path, num_hidden_layers=1, layer_types=["full_attention"])
    refused(path, "config.json model.layers.1.input_layernorm.weight")


def test_layers_that_predict_further_tokens_are_left_out(copied):
    """They lie after the others, and the config counts them apart."""
    path = copied()
    change_config(path, num_nextn_predict_layers=1)

    def add(weights):
        for name in [name for name in weights if ".layers.1." in name]:
            weights[name.replace(".layers.1.", ".layers.2.")] = weights[name].clone()

    change_weights(path, add)
    load_policy(PolicyConfig("x", str(path)))


def test_a_tokenizer_that_is_missing_or_of_another_model_is_refused(copied):
    path = copied()
    whole = (path / "tokenizer.json").read_text()
    (path / "tokenizer.json").unlink()
    refused(path, "tokenizer")

    few = json.loads(whole)
    first = sorted(few["model"]["vocab"].items(), key=lambda item: item[1])[:100]
    few["model"] |= {"vocab": dict(first), "merges": []}
    (path / "tokenizer.json").write_text(json.dumps(few))
    refused(path, "tokenizer 400")


def change_tokenizer(path, **changes):
    whole = json.loads((path / "tokenizer.json").read_text())
    for part, value in changes.items():
        whole[part] = value(whole[part])
    (path / "tokenizer.json").write_text(json.dumps(whole))


@pytest.mark.parametrize("what", ["a padding token", "half of the vocabulary"])
def test_a_tokenizer_with_tokens_that_the_model_lacks_is_refused(copied, what):
    path = copied()
    if what == "a padding token":
        settings = json.loads((path / "tokenizer_config.json").read_text())
        text = json.dumps(settings | {"pad_token": "<new>"})
        (path / "tokenizer_config.json").write_text(text)
    else:
        more = {f"word{number}": 400 + number for number in range(200)}
        change_tokenizer(path, model=lambda model: model | {"vocab": model["vocab"] | more})
    refused(path, "tokenizer 400")


def test_a_token_that_no_text_needs_may_lie_beyond_the_model(copied):
    """Gemma 3's tokenizer has one for images; its text models have no row for that."""
    path = copied()
    image = {"id": 400, "content": "<image>", "special": True, "normalized": False}
    image |= {"single_word": False, "lstrip": False, "rstrip": False}
    change_tokenizer(path, added_tokens=lambda tokens: [*tokens, image])
    policy = load_policy(PolicyConfig("x", str(path)))
    assert len(policy.tokenizer) == 401
    assert len(policy.suppressed) == 400


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"hidden_size": 64}, "config.json"),
        ({"vocab_size": 300}, "config.json model.embed_tokens.weight"),
        ({"model_type": "xyz"}, "config.json xyz"),
        ({"num_attention_heads": 0}, "config.json division"),
        ({"num_hidden_layers": "x"}, "config.json num_hidden_layers int str"),
    ],
)
def test_a_wrong_config_is_named_with_the_reason(copied, values, names):
    path = copied()
    change_config(path, **values)
    refused(path, names)


def test_weights_that_are_no_numbers_are_called_damaged(copied):
    path = copied()

    def damage(weights):
        weights["model.layers.1.mlp.up_proj.weight"][0] = float("nan")

    change_weights(path, damage)
    refused(path, "weights")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "weights"),
        ("tokenizer.json", "tokenizer"),
        ("tokenizer_config.json", "tokenizer"),
    ],
)
def test_a_cut_file_is_named(copied, file, name):
    path = copied()
    (path / file).write_bytes((path / file).read_bytes()[:20])
    refused(path, name)


def test_gguf_is_refused_with_what_is_taken(tmp_path):
    for path in (tmp_path / "model.gguf", tmp_path):
        (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00\xff" + bytes(100))
        refused(path, "safetensors GGUF")


def test_the_tokenizer_is_that_of_the_file_whatever_class_the_directory_names(copied):
    """`AutoTokenizer` puts a named class's splitting rules in the place of the file's."""
    path = copied()
    for named in ("GPT2Tokenizer", "LlamaTokenizer", "NoSuchTokenizer"):
        settings = json.loads((path / "tokenizer_config.json").read_text())
        settings["tokenizer_class"] = named
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
        backend = load_tokenizer(str(path)).backend_tokenizer
        wanted = json.loads((path / "tokenizer.json").read_text())
        assert json.loads(backend.to_str())["pre_tokenizer"] == wanted["pre_tokenizer"]
        text = "Ann has 1234 nuts,  and ate 56."
        assert backend.decode(backend.encode(text).ids, skip_special_tokens=False) == text


def test_an_encoder_is_refused_before_its_parameters_are_counted(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    for look in (load_model, pair_settings):
        with pytest.raises(MrlError, match="t5 cannot be trained") as caught:
            look(str(tmp_path))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["qwen-tiny", "llama-tiny"])
def test_a_saved_tokenizer_names_what_transformers_4_also_knows(random_pair, tmp_path, name):
    """Its class, and its further tokens as a list of that version."""
    shutil.copytree(random_pair / name, tmp_path / "given")
    for given in (str(random_pair / name), str(tmp_path / "given")):
        tokenizer = load_tokenizer(given)
        save_tokenizer(tokenizer, tmp_path)
        settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert settings["tokenizer_class"] != "TokenizersBackend"
        assert not isinstance(settings.get("extra_special_tokens", {}), list)
        again = load_tokenizer(str(tmp_path))
        assert again.all_special_tokens == tokenizer.all_special_tokens
        text = "".join(tokenizer.all_special_tokens) + "3 figs"
        assert again(text).input_ids == tokenizer(text).input_ids
        plain = {"eos_token": tokenizer.eos_token, "pad_token": tokenizer.pad_token}
        plain["tokenizer_class"] = "PreTrainedTokenizerFast"
        (tmp_path / "given" / "tokenizer_config.json").write_text(json.dumps(plain))


def test_numbers_that_fit_no_model_are_one_sentence(random_pair, tmp_path):
    config = json.loads((random_pair / "qwen-tiny" / "config.json").read_text())
    for change in ({"num_key_value_heads": 0}, {"num_attention_heads": -2}, {"hidden_act": "no"}):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(MrlError, match=re.escape(str(tmp_path))):
            shape_of(PolicyConfig("x", str(tmp_path)))
