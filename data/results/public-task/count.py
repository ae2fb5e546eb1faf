"""Count how often models solve problems of reasoning-gym tasks, without any training.

    python data/examples/reasoning_gym_task.py runs/easy gcd:size=8,max_value=20 ...
    python data/results/public-task/count.py runs/easy smol qwen > data/results/public-task/easy.csv

The arguments are the folder with the problems, and the folders of the models. The system prompt is
the one in the problems' folder. Each problem gets 8 completions of at most 64 tokens, at a
temperature of 1.
"""

import csv
import json
import sys
from pathlib import Path

import torch

from mrl.models.loading import load_policies
from mrl.run.problems import load_problems
from mrl.settings.read import run_config
from mrl.verifier.verifier import make_verifier

JUDGE = Path(__file__).resolve().parents[2] / "examples" / "reasoning_gym_task.py"
SAMPLES = 8

folder, *models = sys.argv[1:]
prompt = Path(folder, "system_prompt.txt").read_text(encoding="utf-8")
settings = [f"system_prompt={json.dumps(prompt)}", "max_new_tokens=64", "dtype=float32"]
config = run_config(",".join(models), None, {}, settings)
torch.set_num_threads(1)

table = csv.writer(sys.stdout, lineterminator="\n")
table.writerow(["model", "task", "completions", "boxed", "correct"])
with make_verifier(str(JUDGE), 10.0, print) as verifier:
    problems = load_problems(Path(folder, "heldout.jsonl"), verifier.check_answer)
    for policy in load_policies(config, "cpu"):
        for task in dict.fromkeys(problem.skill for problem in problems):
            chosen = [problem for problem in problems if problem.skill == task]
            completions = boxed = correct = 0
            for group in policy.rollout(chosen, torch.Generator().manual_seed(0), SAMPLES):
                for rollout in group.rollouts:
                    verdict = verifier.verify(group.problem.answer, rollout.text, rollout.finished)
                    completions += 1
                    boxed += r"\boxed{" in rollout.text
                    correct += verdict == "correct"
            table.writerow([policy.name, task, completions, boxed, correct])
