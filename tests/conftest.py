"""No network, no GPU, and how many examples hypothesis tries. The fixtures are in fixtures.py."""

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

settings.register_profile("fast", max_examples=50)
settings.register_profile("full", max_examples=1000)
settings.load_profile("fast")  # --hypothesis-profile full chooses the other one


def pytest_configure(config):
    """The ordinary tests know their numbers from a CPU, whatever else the machine has."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read at CUDA's first use, which comes later

    # with `-n 2`, this process only hands tests to its two workers, so it need not wait for torch
    is_worker = hasattr(config, "workerinput")
    if is_worker or config.option.dist == "no":
        config.pluginmanager.import_plugin("tests.fixtures")
