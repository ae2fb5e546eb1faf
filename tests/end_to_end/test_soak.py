"""A thousand steps: memory and file handles stay flat, a step's share of the logs too."""

import json
import os
import subprocess
import time
from pathlib import Path
from statistics import median

import pytest

from tests.end_to_end.small_run import start

STEPS = 1000
SETTINGS = """
mode = "sgt"
prompts_per_step = 2
checkpoint_every = 125
eval_samples = 1
[[policy]]
path = "random/qwen-tiny"
group_size = 2
max_new_tokens = 3
[[policy]]
path = "random/llama-tiny"
group_size = 2
max_new_tokens = 3
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_memory_handles_and_logs_stay_flat(place, random_pair):
    (place / "random").symlink_to(random_pair)
    (place / "run.toml").write_text(SETTINGS)
    problem = '{"prompt": "1+1=?", "answer": "2"}\n'
    (place / "problems.jsonl").write_text(problem * 4)
    files = ["--set", "train=problems.jsonl", "--set", 'heldout=["problems.jsonl"]']
    program = start(
        place, "--config", "run.toml", *files, "--steps", STEPS, "--name", "soak", "--plain",
        "--placement", "resident", stderr=subprocess.STDOUT,
    )  # fmt: skip
    directory = place / "runs" / "soak"
    seen = []  # (step, KiB of memory, open files, bytes of the logs)
    while program.poll() is None:
        time.sleep(0.5)
        try:
            with (directory / "metrics.jsonl").open() as log:
                step = sum(1 for _ in log) // 2
            status = Path(f"/proc/{program.pid}/status").read_text()
            memory = int(status.split("VmRSS:")[1].split()[0])
            handles = len(os.listdir(f"/proc/{program.pid}/fd"))
        except (OSError, IndexError):
            continue  # not begun, or just ended
        if 0 < step < STEPS:
            seen.append((step, memory, handles, logs_of(directory)))
    assert program.returncode == 0, program.stdout.read()[-2000:]
    early = [entry for entry in seen if 200 <= entry[0] < 350]
    late = [entry for entry in seen if entry[0] >= 800]
    assert early and late
    # what is lost stays: the median; the highest may have caught a checkpoint just being written
    memory, handles = ([median(e[i] for e in part) for part in (early, late)] for i in (1, 2))
    assert memory[1] < 1.05 * memory[0]
    assert handles[1] < handles[0] + 1
    a_step = [(entry[3] - before[3]) / (entry[0] - before[0])
              for before, entry in ((early[0], early[-1]), (late[0], late[-1]))]  # fmt: skip
    assert a_step[1] < 1.1 * a_step[0]
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == STEPS
    print(
        f"{STEPS} steps: memory {memory[0] / 1024:.0f} -> {memory[1] / 1024:.0f} MiB, "
        f"{handles[0]:.0f} -> {handles[1]:.0f} open files, "
        f"{a_step[0]:.0f} -> {a_step[1]:.0f} bytes of logs a step"
    )


def logs_of(directory):
    return sum(path.stat().st_size for path in directory.glob("*.jsonl"))
