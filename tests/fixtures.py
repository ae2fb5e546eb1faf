"""The fixtures: the settings of a turn, and a pair of random-weight policies that is made once.

conftest.py loads this file.
"""

from copy import deepcopy
from functools import partial

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mrl.config import PolicyConfig
from mrl.models import loading
from mrl.models.loading import load_model, load_policy
from mrl.tiny.pair import PAIR, build_model, tiny_tokenizer
from mrl.verifier.verifier import BoxVerifier
from tests.end_to_end.small_run import write_problems
from tests.fakes import ToyReceiver, make_team

torch.backends.cuda.enable_cudnn_sdp(False)


@pytest.fixture(autouse=True)
def one_thread():
    """As during a turn. A test that runs the program may leave another number behind."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def random_pair(tmp_path_factory):
    """Directory of the tiny pair's architectures and tokenizers, with random weights.

    They have two layers each, so that tests are fast.
    """
    directory = tmp_path_factory.mktemp("random_pair")
    for name in PAIR:
        torch.manual_seed(1)
        tokenizer = tiny_tokenizer(name)
        config = build_model(name, tokenizer).config.to_dict()
        config |= {"num_hidden_layers": 2, "layer_types": None}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        model.save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)
    return directory


@pytest.fixture(scope="session")
def random_models(random_pair):
    """The models of the random pair, by their path."""
    return {path: load_model(path) for path in (str(random_pair / name) for name in PAIR)}


@pytest.fixture
def make_policy(random_pair, random_models, monkeypatch):
    """A function that loads one of the random pair with the given settings.

    Without other settings, a policy makes one update per step at a rate of 1e-4.

    Hundreds of tests use it, so weights are read once. `packing_problem` is tested elsewhere.
    """

    def make(name="qwen-tiny", index=0, **settings):
        with monkeypatch.context() as patch:
            patch.setattr(loading, "load_model", lambda path, *_: deepcopy(random_models[path]))
            patch.setattr(loading, "packing_problem", lambda model: "")
            settings = {"learning_rate": 1e-4, "updates_per_step": 1} | settings
            return load_policy(PolicyConfig(name, str(random_pair / name), **settings), index)

    return make


@pytest.fixture
def receiver(make_policy):
    """A toy policy for the tests of modes."""
    return ToyReceiver(make_policy().codec)


@pytest.fixture
def small_team(make_policy):
    """A function that makes a team of two random-weight policies."""
    return partial(make_team, make_policy)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty working directory with two small problem files."""
    monkeypatch.chdir(tmp_path)
    write_problems(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def verifier():
    with BoxVerifier() as shared:
        yield shared
