"""How soon does the program answer? Processor seconds of help and of mistakes, and of torch alone.

    python tests/bench/bench_answers.py

Each line has the smallest of ROUNDS measurements: seconds of the processor in user and system mode,
for a whole process. Then come the number of modules that the process loaded, and the large packages
among them. Seconds depend on the machine; the share of `import torch` hardly does.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3
LARGE = ("torch", "transformers", "numpy", "sympy", "matplotlib", "rich", "typer")
COMMANDS = (
    "--help",
    "train --help",
    "settings",
    "assignment list",
    "--stpes 3",
    "trian",
    "--mode stg",
    "compare --modes solo,stg",
    "--set train=none.jsonl",
    "--config none.toml",
    "resume runs/none",
)


def measure(*words: str) -> tuple[float, list[str]]:
    """Processor seconds of a Python process, and the modules that it loaded."""
    seconds, loaded = [], []
    with TemporaryDirectory() as folder:
        for number in range(ROUNDS + 1):
            options = ["-X", "importtime"] if number == ROUNDS else []
            before = os.times()
            done = subprocess.run(
                [sys.executable, *options, *words],
                cwd=folder, capture_output=True, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            after = os.times()
            spent = after.children_user + after.children_system
            seconds.append(spent - before.children_user - before.children_system)
            loaded = re.findall(r"(?m)^import time:.*\| +(\S+)$", done.stderr)
    return min(seconds[:ROUNDS]), loaded


def main() -> None:
    """Print a line for each command."""
    torch, modules = measure("-c", "import torch")
    measured = {"(import torch)": (torch, modules)}
    measured["(import mini_mrl)"] = measure("-c", "import mini_mrl")
    for command in COMMANDS:
        measured[command] = measure(str(ROOT / "mini_mrl.py"), *command.split())

    print("command                     seconds  of torch  modules")
    for command, (seconds, modules) in measured.items():
        large = " ".join(name for name in LARGE if name in modules)
        line = f"{command:26} {seconds:8.2f} {seconds / torch:9.2f} {len(modules):8}  {large}"
        print(line)


if __name__ == "__main__":
    main()
