"""Rollout against `model.generate`, a whole training step against TRL's GRPOTrainer.

    python tests/bench/bench_speed.py                      # rollout only
    python tests/bench/bench_speed.py --trl PYTHON         # PYTHON: of an environment with trl
    python tests/bench/bench_speed.py --size large --rounds 2
    python tests/bench/bench_speed.py --size shipped --trl PYTHON --rounds 12

TRL is no dependency: `python3 -m venv trl && trl/bin/pip install trl`, then `--trl trl/bin/python`.
Same weights, prompts, group size, lengths, one AdamW update a step, one thread. `tiny` and `large`
are random weights, end tokens forbidden and half of each group right, so that both do the same
multiplications. `shipped` is `data/tiny/qwen-tiny` on its own problems: completions end where they
end, are right or wrong, and a group that is all one or the other teaches nothing. The two take
turns; printed are ratios of CPU seconds, minimum / median / maximum over the rounds. Nothing else
that one of them does apart (tokenizing, logging) is taken out. Last come two policies on two cores,
in seconds of the clock: TRL trains one after the other, each step with two threads; ours train at
once, a process and a thread each, as under `--placement parallel`.
"""

import argparse
import itertools
import json
import multiprocessing
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
PROMPTS, GROUP = 16, 8
NEW_TOKENS = {"tiny": 32, "large": 32, "shipped": 48}
SIZES = {  # hidden, layers, heads, intermediate, vocabulary
    "tiny": (256, 4, 4, 688, 512),
    "large": (640, 10, 10, 1728, 32000),
}


def model_directory(size: str, directory: Path) -> Path:
    """The shipped model, or a random Qwen2 model with its tokenizer, saved in `directory`."""
    if size == "shipped":
        return ROOT / "data" / "tiny" / "qwen-tiny"
    from mrl.tiny.pair import tiny_tokenizer

    hidden, layers, heads, intermediate, vocabulary = SIZES[size]
    tokenizer = tiny_tokenizer("qwen-tiny")
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            intermediate_size=intermediate,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    print(f"{size}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    return directory


def problems(size: str) -> list:
    """The problems of all steps: sixteen again and again, or those of training in turn."""
    from mrl.run.problems import load_problems
    from mrl.tiny.skills import SKILLS, generate

    if size == "shipped":
        made = load_problems(ROOT / "data" / "words" / "train.jsonl")
        random.Random(0).shuffle(made)
        return made[: 60 * PROMPTS]
    made = [problem for skill in SKILLS for problem, _ in generate(skill, "train", 2, 0)]
    return made[:PROMPTS]


def steps(size: str) -> list[list]:
    """The same, cut into the steps' prompts."""
    made = problems(size)
    return [made[start : start + PROMPTS] for start in range(0, len(made), PROMPTS)]


def report(what: str, theirs: list[float], ours: list[float]) -> None:
    """One line: the ratio of CPU seconds."""
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    print(
        f"{what}: {min(ratios):.2f} / {statistics.median(ratios):.2f} / {max(ratios):.2f}   "
        f"({statistics.median(theirs):.2f} s against {statistics.median(ours):.2f} s)"
    )


class Ours:
    """The product's own rollout and learning step."""

    def __init__(self, size: str, directory: Path, dtype: str = "float32") -> None:
        from mrl.config import PolicyConfig
        from mrl.models.loading import load_policy

        self.forced, new_tokens = size != "shipped", NEW_TOKENS[size]
        self.policy = load_policy(
            PolicyConfig(
                "ours", str(directory), max_new_tokens=new_tokens, learning_rate=1e-5, dtype=dtype
            )
        )
        if self.forced:
            self.policy.suppressed[self.policy.eos_ids] = True
        self.problems = itertools.cycle(steps(size))
        self.generator = torch.Generator().manual_seed(0)
        self.right = []  # share of completions, step by step

    def rollout(self) -> list:
        """One group for each prompt of the next step."""
        return self.policy.rollout(next(self.problems), self.generator, GROUP)

    def step(self) -> None:
        """Rollout, reward, one update."""
        from mrl.learning import learn
        from mrl.modes.own import own_samples
        from mrl.reward import Verdict

        groups = self.rollout()
        for group in groups:
            for number, rollout in enumerate(group.rollouts):
                boxed = f"\\boxed{{{group.problem.answer}}}"
                right = number % 2 if self.forced else boxed in rollout.text
                rollout.verdict = Verdict.CORRECT if right else Verdict.WRONG
        self.right.append(statistics.mean(statistics.mean(group.rewards) for group in groups))
        learn(self.policy, [s for group in groups for s in own_samples(self.policy, group)])


class Generate:
    """`model.generate` on the same prompts, every row prefilled by itself, as it does."""

    def __init__(self, size: str, ours: Ours) -> None:
        self.policy, self.model = ours.policy, ours.policy.model
        self.problems = itertools.cycle(steps(size))
        tokenizer = ours.policy.tokenizer
        tokenizer.padding_side = "left"
        self.config = GenerationConfig(
            do_sample=True,
            max_new_tokens=NEW_TOKENS[size],
            min_new_tokens=NEW_TOKENS[size] if ours.forced else None,
            top_k=0,
            top_p=1.0,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )

    def rollout(self) -> None:
        """All rows of the next step."""
        prompts = [problem.prompt for problem in next(self.problems)]
        ids = [self.policy.prompt_ids(text) for text in prompts for _ in range(GROUP)]
        batch = self.policy.tokenizer.pad({"input_ids": ids}, return_tensors="pt")
        with torch.no_grad():
            self.model.generate(**batch, generation_config=self.config)


TRL_CHILD = """
import json, sys, time, resource, torch
threads = int(sys.argv.pop())
torch.set_num_threads(threads)
clock = time.process_time if threads == 1 else time.perf_counter
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
directory, size, group, new_tokens, micro, forced = sys.argv[1], *map(int, sys.argv[2:])
problems = json.loads(sys.stdin.readline())

class Turns(TrainerCallback):
    def on_step_begin(self, *args, **kwargs):
        sys.stdin.readline()
        self.start = clock()
    def on_step_end(self, *args, **kwargs):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print("STEP", clock() - self.start, peak, flush=True)

config = GRPOConfig(
    output_dir="/tmp/trl-bench", max_steps=1000, num_generations=group,
    per_device_train_batch_size=micro, gradient_accumulation_steps=size * group // micro,
    max_completion_length=new_tokens, beta=0.0, learning_rate=1e-5, logging_steps=10**6,
    save_strategy="no", report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
    top_k=0, generation_kwargs={"min_new_tokens": new_tokens} if forced else {},
    shuffle_dataset=False, disable_tqdm=True,
)
tokenizer = AutoTokenizer.from_pretrained(directory)
data = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": p}], "answer": a} for p, a in problems]
    * (1600 // len(problems) + 1)
)
def reward(completions, answer, **_):
    texts = [completion[0]["content"] for completion in completions]
    boxed = ["\\\\boxed{" + a + "}" for a in answer]
    right = [
        float(number % 2 if forced else box in text)
        for number, (box, text) in enumerate(zip(boxed, texts))
    ]
    print("RIGHT", sum(right) / len(right), flush=True)
    return right
trainer = GRPOTrainer(model=directory, reward_funcs=reward, args=config, train_dataset=data,
                      processing_class=tokenizer, callbacks=[Turns()])
trainer.train()
"""


class Trl:
    """GRPOTrainer in a process of its own, one step a turn."""

    def __init__(
        self, python: str, size: str, directory: Path, max_tokens_per_forward: int, threads: int = 1
    ) -> None:
        forced = int(size != "shipped")
        sizes = map(
            str, (PROMPTS, GROUP, NEW_TOKENS[size], max_tokens_per_forward, forced, threads)
        )
        self.child = subprocess.Popen(
            [python, "-c", TRL_CHILD, str(directory), *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        made = [(problem.prompt, problem.answer) for problem in problems(size)]
        self.child.stdin.write(json.dumps(made) + "\n")
        self.peak_mib = 0.0
        self.right = []

    def step(self) -> float:
        """Seconds of its next step: of the CPU, with two threads of the clock."""
        self.child.stdin.write("go\n")
        self.child.stdin.flush()
        for line in self.child.stdout:
            if line.startswith("RIGHT"):
                self.right.append(float(line.split()[1]))
            if line.startswith("STEP"):
                _, seconds, peak = line.split()
                self.peak_mib = int(peak) / 1024
                return float(seconds)
        raise SystemExit("TRL ended; run the child by hand to see why.")


def floor_seconds(ours: Ours) -> tuple[float, float]:
    """Seconds of (rollout, whole step) if nothing were done but the multiplications needed.

    Two operations a weight and token forwards, four backwards; each prompt once; logits only where
    a token is predicted; at the rate this machine multiplies [1024, h] by [h, 4 h] right now.
    Attention and everything element by element are left out.
    """
    model = ours.policy.model
    head = model.get_output_embeddings().weight.numel()
    body = sum(p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n)
    body -= 0 if model.config.tie_word_embeddings else head
    prompt_tokens = sum(len(ours.policy.prompt_ids(p.prompt)) for p in problems("tiny"))
    new_tokens = PROMPTS * GROUP * NEW_TOKENS["tiny"]
    forward = 2 * body * (prompt_tokens + new_tokens) + 2 * head * new_tokens
    hidden = model.config.hidden_size
    left, right = torch.randn(1024, hidden), torch.randn(hidden, 4 * hidden)
    best = min(timed(lambda: [left @ right for _ in range(20)]) for _ in range(5))
    rate = 20 * 2 * 1024 * hidden * 4 * hidden / best
    return forward / rate, 4 * forward / rate


def timed(function: object) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def against_trl(trl: Trl, ours: Ours, rounds: int) -> None:
    """Steps in turn; peak memory; whether both solve as much."""
    trl.step()
    ours.step()  # warm
    pairs = [(trl.step(), timed(ours.step)) for _ in range(rounds)]
    report("whole step, TRL / ours", *map(list, zip(*pairs, strict=True)))
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process: TRL {trl.peak_mib:.0f} MiB, ours {own:.0f} MiB")
    trl.child.kill()
    if not ours.forced:
        shares = statistics.mean(trl.right), statistics.mean(ours.right)
        print(f"solved while training: TRL {shares[0]:.0%}, ours {shares[1]:.0%}")


ALONE: dict[str, Ours] = {}  # of a process with one policy


def prepare(size: str, directory: Path) -> None:
    """A process of its own for one policy."""
    torch.set_num_threads(1)
    ALONE["ours"] = Ours(size, directory)


def step_alone() -> None:
    """One step of this process's policy."""
    ALONE["ours"].step()


def two_policies(python: str, size: str, directory: Path, micro: int, rounds: int) -> None:
    """Seconds of the clock for a step of both."""
    theirs = [Trl(python, size, directory, micro, threads=2) for _ in range(2)]
    context, about = multiprocessing.get_context("spawn"), (size, directory)
    ours = [ProcessPoolExecutor(1, context, prepare, about) for _ in range(2)]
    for trl, process in zip(theirs, ours, strict=True):  # warm
        trl.step()
        process.submit(step_alone).result()
    pairs = []
    for _ in range(rounds):
        slow = sum(trl.step() for trl in theirs)
        began = time.perf_counter()
        for step in [process.submit(step_alone) for process in ours]:
            step.result()
        pairs.append((slow, time.perf_counter() - began))
    report("two policies on two cores, TRL / ours", *map(list, zip(*pairs, strict=True)))
    for trl in theirs:
        trl.child.kill()


def main() -> None:
    """Take turns, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=NEW_TOKENS, default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trl", help="python of an environment with trl")
    parser.add_argument("--micro-batch", type=int, default=8, help="of TRL; 8 is its best on a CPU")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        directory = model_directory(arguments.size, Path(folder))
        ours = Ours(arguments.size, directory)
        generate = Generate(arguments.size, ours)
        ours.rollout()
        generate.rollout()  # warm
        pairs = [(timed(generate.rollout), timed(ours.rollout)) for _ in range(arguments.rounds)]
        report("rollout, generate / ours", *map(list, zip(*pairs, strict=True)))
        if ours.forced:
            rounds = [(timed(ours.rollout), *floor_seconds(ours)) for _ in range(arguments.rounds)]
            report("rollout, ours / floor", [r[0] for r in rounds], [r[1] for r in rounds])
            rounds = [(timed(ours.step), *floor_seconds(ours)) for _ in range(arguments.rounds)]
            report("whole step, ours / floor", [r[0] for r in rounds], [r[2] for r in rounds])
        del generate
        ours = Ours(arguments.size, directory)  # both begin with the same weights
        if arguments.trl:
            trl = Trl(arguments.trl, arguments.size, directory, arguments.max_tokens_per_forward)
            against_trl(trl, ours, arguments.rounds)
            two_policies(
                arguments.trl,
                arguments.size,
                directory,
                arguments.max_tokens_per_forward,
                arguments.rounds,
            )
        else:
            print("whole step against TRL: give --trl PYTHON (see the top of this file)")
        mixed = Ours(arguments.size, directory, "mixed")
        mixed.step()  # warm
        pairs = [(timed(ours.step), timed(mixed.step)) for _ in range(arguments.rounds)]
        report("whole step, float32 / mixed", *map(list, zip(*pairs, strict=True)))


if __name__ == "__main__":
    main()
