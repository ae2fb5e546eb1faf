"""What a GPU says about the speed of this program: one command, at most six minutes, one JSON file.

    python tests/bench/gpu_session.py                     # every part; writes runs/gpu.json
    python tests/bench/gpu_session.py --only tiny whole   # these parts; the others' entries stay
    python tests/bench/gpu_session.py --out FILE

The parts, in their order:

    tiny        the tiny pair writes the same completions on the GPU as on the CPU, in float32
    token-*     milliseconds per recorded token, seconds per rollout, how far a recording is off
    whole       four steps of both policies with `train_step`, both resident on the device
    learning-*  seconds of a learning step right after a rollout, with full and with ragged lengths
                and three micro-batch sizes, and its peak memory
    trl         one step of TRL's GRPOTrainer on the same shapes, if TRL is installed (`pip install
                trl`; without a network, from wheels that `pip download trl` has fetched elsewhere)

Several changes made the program faster. To see what each of them gives, the same process runs the
program without them and with them. LADDER names these variants; each has one change more than the
one before it:

    before      transformers' own RMSNorm and forward pass; a recording starts after three tokens,
                and first gives all cached memory back to the driver
    norm        every RMSNorm is one kernel
    early       a recording starts after one token
    cache       a recording keeps the cached memory, unless little memory is free
    now         the forward pass of one token is written out (mrl/decoder.py)

Other programs may come and go on the same card, so the variants take turns (A B A B), and a list
has one number for each turn. CUDA events take the time. Next to a result stands what was predicted
for an H100, by arithmetic from earlier measurements. Before each part, the load of the machine and
the processes on the card are noted.

The models have random weights and the shapes of Qwen2.5-0.5B and SmolLM2-360M, so nothing is
downloaded. No completion ends early, except where lengths are "ragged". Each part is a process of
its own with a time limit, and every result is written as soon as it is known, so a part that fails
or runs out of time loses nothing that was measured before.

The exit code is 0 if all parts went well, 1 if one of them did not, and 2 without a CUDA device.
"""

import argparse
import json
import logging
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from mini_mrl import train_step
from mrl.config import DATA, PolicyConfig
from mrl.learning import LARGEST_MEAN_GAP, learn
from mrl.models import cuda_graph, loading
from mrl.modes.sgt import SGT
from mrl.placement import Allocation
from mrl.policy import Policy
from mrl.reward import Verdict
from mrl.rollout import sample_completions
from mrl.run.problems import load_problems
from mrl.samples import Group, Problem, TrainingSample
from mrl.team import Team

LADDER = ("before", "norm", "early", "cache", "now")
OLD = {  # variant -> what it changed in cuda_graph.py, and the value before
    "early": ("RECORD_AFTER", 3),
    "cache": ("FREE", float("inf")),  # so that the cache is always emptied
    "now": ("one_token_decoder", lambda model: None),
}
ROUNDS = 2  # how often each variant has its turn
FEW = 20  # tokens of a rollout that only prepares a measurement
TRL_BATCH = 16  # completions in one forward pass of TRL
MINUTES = 6  # for all parts together
MODELS = {  # name -> classes, the tokenizer that stands in for the model's own, and the shape
    "qwen2.5": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, "qwen-tiny", dict(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, rope_theta=1e6)),
    "smollm2": (transformers.LlamaForCausalLM, transformers.LlamaConfig, "llama-tiny", dict(
        vocab_size=49152, hidden_size=960, intermediate_size=2560, num_hidden_layers=32,
        num_attention_heads=15, num_key_value_heads=5, rope_theta=1e5)),
}  # fmt: skip
# part -> result -> what an H100 should show; "measured" was seen on one, before the changes
PREDICTED = {
    "tiny": {"qwen-tiny": "all are equal", "llama-tiny": "all are equal"},
    "token-qwen2.5": {
        "before": "4.45 ms a token; a rollout of 2.2 s (measured)",
        "norm": "3.7 ms a token",
        "early": "a rollout takes 0.07 s less",
        "now": "2.5 ms a token; a rollout of 1.3 s",
    },
    "token-smollm2": {
        "before": "6.3 ms a token; a rollout of 2.9 s (measured)",
        "norm": "5.3 ms a token",
        "early": "a rollout takes 0.07 s less",
        "now": "3.5 ms a token; a rollout of 1.7 s",
    },
    "whole": {"3 before": "10.4 to 11.5 s (measured)", "4 now": "6.9 s"},
    "learning-qwen2.5": {
        "full 4096 before": "2.8 s (measured; 2.2 without a rollout before it); 15.9 GiB",
        "full 8192 before": "1.85 s (measured without a rollout before it)",
        "full 16384 now": "1.75 s; 34 GiB",
        "ragged 4096 before": "2.4 to 2.9 s (measured)",
        "ragged 16384 now": "1.0 s",
    },
    "learning-smollm2": {
        "full 4096 before": "2.4 to 3.3 s (measured); 12.2 GiB",
        "full 16384 now": "1.6 s",
        "ragged 16384 now": "0.85 s",
    },
    "trl": {"qwen2.5": "15 s to sample (37 ms a token, unrecorded), 3 to 4 s to learn"},
}

Note = Callable[[str, dict], None]  # (name of a result, its numbers): writes them at once


@dataclass
class Scale:
    """Where the parts run and how large they are; the tests make them small, on a CPU."""

    device: str = "cuda:0"
    prompts: int = 16
    group: int = 8
    prompt: int = 150  # tokens
    completion: int = 400  # tokens
    micro_batches: tuple[int, ...] = (4096, 8192, 16384)
    shape: dict | None = None  # replaces parts of the true shapes

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")


# ------------------------------------------------------------------------------ what is measured


def model_of(scale: Scale, name: str) -> transformers.PreTrainedModel:
    """A model with random weights on the device."""
    model, config, _, shape = MODELS[name]
    torch.manual_seed(0)
    with torch.device(scale.device):
        return model(config(**{**shape, **(scale.shape or {})}, tie_word_embeddings=True))


def policy_of(scale: Scale, name: str) -> Policy:
    """A policy that learns in mixed precision and writes completions of full length."""
    config = PolicyConfig(
        name, name, group_size=scale.group, max_new_tokens=scale.completion,
        max_tokens_per_forward=scale.micro_batches[0], learning_rate=1e-6, dtype="mixed",
    )  # fmt: skip
    tokenizer = loading.load_tokenizer(str(DATA / "tiny" / MODELS[name][2]))
    policy = Policy(config, model_of(scale, name), tokenizer)
    policy.suppressed[policy.eos_ids] = True
    policy.graph_decode = cuda_graph.decode
    return policy


def sample(policy: Policy, scale: Scale, tokens: int) -> None:
    """A rollout: completions of so many tokens, for prompts of slightly different lengths."""
    prompts = [[5] * (scale.prompt - number % 7) for number in range(scale.prompts)]
    with policy.precision():
        sample_completions(
            policy.model, prompts, scale.group, max_new_tokens=tokens, temperature=1.0,
            eos_ids=torch.tensor(policy.eos_ids, device=scale.device),
            suppressed=policy.suppressed, generator=torch.Generator().manual_seed(0),
            decode=policy.graph_decode,
        )  # fmt: skip


def samples_of(scale: Scale, ragged: bool = False) -> list[TrainingSample]:
    """Completions that all teach; ragged ones have a tenth of the full length or more."""
    chance, shortest = random.Random(0), scale.completion // 10 + 1
    samples = []
    for number in range(scale.prompts):
        prompt = [5] * (scale.prompt - 2) + [6 + number % 50, 7 + number // 50]
        for i in range(scale.group):
            length = chance.randint(shortest, scale.completion) if ragged else scale.completion
            ids = [8 + (i + t) % 40 for t in range(length)]
            sampled = {"advantage": (-1.0) ** i, "behavior_logprobs": [-4.0] * length}
            samples.append(TrainingSample(prompt, ids, **sampled))
    return samples


def problems_of(scale: Scale) -> list[Problem]:
    """Problems with long prompts: several of `data/words` in a row, of about 17 tokens each."""
    words = load_problems(DATA / "words" / "train.jsonl")
    several = 1 + scale.prompt // 17
    texts = [words[n * several :][:several] for n in range(scale.prompts)]
    return [Problem(str(n), " ".join(p.prompt for p in few), "7") for n, few in enumerate(texts)]


@contextmanager
def program(variant: str, models: Iterable[transformers.PreTrainedModel]) -> Iterator[None]:
    """Within it, the program is that of a variant of LADDER; models: those that it will use."""
    for model in models:
        for module in model.modules():
            if type(module).__name__ in loading.SAME_RMS_NORM:
                vars(module).pop("forward", None)  # what remains is the method of its class
        if variant != "before":
            loading._use_one_kernel_per_norm(model)

    with ExitStack() as stack:
        for later in LADDER[LADDER.index(variant) + 1 :]:
            if later in OLD:
                stack.enter_context(patch.object(cuda_graph, *OLD[later]))
        yield


# ------------------------------------------------------------------------------ how it is measured


def mark(scale: Scale) -> Any:
    """This moment in the work of the device."""
    if not scale.cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(start: Any, stop: Any) -> float:
    """Seconds between two moments."""
    if isinstance(start, float):
        return stop - start
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def measured(scale: Scale, job: Callable[..., Any], *arguments: object) -> tuple[dict, Any]:
    """A job's seconds, until the device has done it, and its peak of memory; what it returns."""
    if scale.cuda:
        torch.cuda.reset_peak_memory_stats()
    start = mark(scale)
    result = job(*arguments)
    seconds = round(seconds_between(start, mark(scale)), 3)
    return {"seconds": seconds, "peak_GiB": in_gib(torch.cuda.max_memory_allocated())}, result


def in_gib(size: int) -> float:
    """Bytes in GiB, rounded."""
    return round(size / 2**30, 2)


@contextmanager
def watched_recordings(scale: Scale) -> Iterator[tuple[list, list[float]]]:
    """Within it: when each recorded token began, and the gaps that the program's check found."""
    capture, largest_gap = cuda_graph._capture, cuda_graph._largest_gap
    marks, gaps = [], []

    def marking_capture(step: Callable[[], None]) -> Callable[[], object]:
        replay = capture(step)
        return lambda: (marks.append(mark(scale)), replay())

    def noted_gap(*arguments: Any) -> float:
        gaps.append(largest_gap(*arguments))
        return gaps[-1]

    with patch.multiple(cuda_graph, _capture=marking_capture, _largest_gap=noted_gap):
        yield marks, gaps


# ------------------------------------------------------------------------------ the parts


def tiny(scale: Scale, note: Note) -> bool:
    """The share of completions that are the CPU's, with equal seeds."""
    problems = load_problems(DATA / "words" / "validation.jsonl")[:: 360 // scale.prompts]
    shares = []
    for name in ("qwen-tiny", "llama-tiny"):
        written = []
        for device in ("cpu", scale.device):
            config = PolicyConfig(name, str(DATA / "tiny" / name), dtype="float32")
            policy = loading.load_policy(config, device=device)
            groups = policy.rollout(problems, torch.Generator().manual_seed(0))
            written.append([r.completion_ids for group in groups for r in group.rollouts])
        shares.append(sum(a == b for a, b in zip(*written, strict=True)) / len(written[0]))
        note(name, {"equal": shares[-1], "completions": len(written[0])})
    return min(shares) > 0.98  # the last bit of a sum may decide a draw


def token(name: str, scale: Scale, note: Note) -> bool:
    """A recorded token and a whole rollout, for each variant."""
    policy = policy_of(scale, name)
    found = {variant: {"token_ms": [], "rollout_s": []} for variant in LADDER}

    for variant, numbers in found.items():  # kernels are chosen, and each recording is checked
        with program(variant, [policy.model]), watched_recordings(scale) as (_, gaps):
            cuda_graph._compared.discard(policy.model)
            sample(policy, scale, min(FEW, scale.completion))
        numbers["gap"] = gaps[0] if gaps else None  # a share of the largest logit
        numbers["failures"] = list(cuda_graph._failures)
        cuda_graph._failures.clear()  # another variant may do better

    for _ in range(ROUNDS):
        for variant, numbers in found.items():
            with program(variant, [policy.model]), watched_recordings(scale) as (marks, _):
                taken, _ = measured(scale, sample, policy, scale, scale.completion)
            numbers["rollout_s"].append(taken["seconds"])
            if len(marks) > 1:
                per_token = seconds_between(marks[0], marks[-1]) / (len(marks) - 1)
                numbers["token_ms"].append(round(1e3 * per_token, 3))
            note(variant, numbers)
    return all(numbers["token_ms"] and not numbers["failures"] for numbers in found.values())


class EveryOtherIsCorrect:
    """A verifier that accepts half of each group, so that all groups teach, and believes peers."""

    def verify(self, answer: str, text: str, finished: bool) -> Verdict:
        return Verdict.CORRECT

    def verify_groups(self, groups: Iterable[Group]) -> None:
        for group in groups:
            for number, rollout in enumerate(group.rollouts):
                rollout.verdict = Verdict.WRONG if number % 2 else Verdict.CORRECT


def whole(scale: Scale, note: Note) -> bool:
    """Four steps, in turn as before (with the smallest micro-batch) and as now (the largest)."""
    policies = [policy_of(scale, name) for name in MODELS]
    models = [policy.model for policy in policies]
    team = Team(
        policies, {name: SGT() for name in MODELS}, problems_of(scale), EveryOtherIsCorrect(),
        Allocation(policies, list(MODELS), "resident", scale.device),
        prompts_per_step=scale.prompts,
    )  # fmt: skip
    with program("now", models):
        for policy in policies:  # kernels are chosen, and AdamW gets its state
            sample(policy, scale, min(FEW, scale.completion))
            learn(policy, samples_of(scale)[: scale.group])

    good = True
    for step, variant in enumerate(("before", "now") * ROUNDS, start=1):
        for policy in policies:
            policy.max_tokens_per_forward = scale.micro_batches[0 if variant == "before" else -1]
        with program(variant, models):
            numbers, results = measured(scale, train_step, team, step)

        for turn in team.allocation.ledger:
            numbers[f"{turn.policy} {turn.phase}_s"] = round(turn.stop_s - turn.start_s, 2)
        stats = [result.stats for result in results.values()]
        numbers["gap_mean"] = max(each.own.on_policy_gap_mean for each in stats)
        warnings = [warning for each in stats for warning in each.warnings]
        numbers["warnings"] = warnings + cuda_graph._failures
        note(f"{step} {variant}", numbers)
        good &= numbers["gap_mean"] < LARGEST_MEAN_GAP and not numbers["warnings"]
    return good


def learning(name: str, scale: Scale, note: Note) -> bool:
    """A learning step after a short rollout, whose recording may give memory back to the driver."""
    policy, good = policy_of(scale, name), True
    lengths = {"full": samples_of(scale), "ragged": samples_of(scale, ragged=True)}
    learn(policy, lengths["full"][: scale.group])  # AdamW gets its state
    found: dict[str, dict[str, list]] = {}
    for _, length, size, variant in product(
        range(ROUNDS), lengths, scale.micro_batches, ("before", "now")
    ):
        policy.max_tokens_per_forward = policy.config.max_tokens_per_forward = size
        with program(variant, [policy.model]):
            sample(policy, scale, min(FEW, scale.completion))
            taken, _ = measured(scale, learn, policy, lengths[length])

        halved = policy.max_tokens_per_forward < size  # memory ran out
        key = f"{length} {size} {variant}"
        numbers = found.setdefault(key, {"seconds": [], "peak_GiB": []})
        for kind, value in taken.items():
            numbers[kind].append(value)
        note(key, numbers | {"halved": halved})
        good &= not halved
    return good


def trl(scale: Scale, note: Note) -> bool:
    """One step of TRL's trainer: transformers generates, and as many completions teach."""
    try:
        from datasets import Dataset
        from datasets.table import InMemoryTable
        from trl import GRPOConfig, GRPOTrainer, __version__
    except ImportError as error:
        note("skipped", {"why": str(error)})
        return True

    name, rows = "qwen2.5", scale.prompts * scale.group
    batch = min(TRL_BATCH, rows)
    prompts = InMemoryTable.from_pydict({"prompt": [p.prompt for p in problems_of(scale)]})
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            folder, max_steps=1, num_generations=scale.group, per_device_train_batch_size=batch,
            gradient_accumulation_steps=rows // batch, max_completion_length=scale.completion,
            generation_kwargs={"min_new_tokens": scale.completion}, top_k=0, beta=0.0,
            learning_rate=1e-6, bf16=scale.cuda, use_cpu=not scale.cuda,
            gradient_checkpointing=False, save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model_of(scale, name),
            reward_funcs=lambda completions, **_: [float(n % 2) for n in range(len(completions))],
            args=config,
            # without a given fingerprint it is pickled, which fails with pyarrow 26
            train_dataset=Dataset(prompts, fingerprint="prompts"),
            processing_class=loading.load_tokenizer(str(DATA / "tiny" / MODELS[name][2])),
        )
        numbers, _ = measured(scale, trainer.train)
    note(name, numbers | {"trl": __version__, "batch": batch})
    return True


PARTS: dict[str, tuple[Callable[[Scale, Note], bool], float]] = {  # and the most seconds of each
    "tiny": (tiny, 60),  # the first one reads torch from the disk
    "token-qwen2.5": (partial(token, "qwen2.5"), 50),
    "token-smollm2": (partial(token, "smollm2"), 60),
    "whole": (whole, 80),
    "learning-qwen2.5": (partial(learning, "qwen2.5"), 80),
    "learning-smollm2": (partial(learning, "smollm2"), 80),
    "trl": (trl, 80),
}


# ------------------------------------------------------------------------------ the session


def read(out: Path) -> dict[str, dict]:
    """The entries of all parts so far."""
    return json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}


def write(out: Path, name: str, entry: dict) -> None:
    """Write a part's entry; whenever a process ends, the file is whole."""
    next_file = out.with_suffix(".next")
    next_file.write_text(json.dumps(read(out) | {name: entry}, indent=1), encoding="utf-8")
    os.replace(next_file, out)


def on_the_card() -> list[str]:
    """What nvidia-smi says: name, use and memory of each card, then the processes there."""
    lines = []
    for query in ("gpu=name,utilization.gpu,memory.used", "compute-apps=pid,used_memory"):
        command = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.TimeoutExpired) as error:
            return [f"nvidia-smi cannot be asked: {error}"]
        lines += (done.stdout + done.stderr).splitlines()
    return lines


def run_part(name: str, scale: Scale, out: Path) -> None:
    """Run a part in this process; each result is written at once."""
    logging.basicConfig(level=logging.WARNING)
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as mini_mrl.py does
    loading.claim_process()
    started, entry, (part, _) = time.perf_counter(), read(out).get(name, {}), PARTS[name]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    entry |= versions | {"good": False, "results": {}, "ended": "before its last result"}

    def note(key: str, numbers: dict) -> None:
        predicted = PREDICTED[name].get(key)
        entry["results"][key] = numbers | ({"predicted": predicted} if predicted else {})
        entry["seconds"] = round(time.perf_counter() - started, 1)
        write(out, name, entry)

    try:
        entry |= {"good": bool(part(scale, note)), "ended": "by itself"}
    except Exception as error:  # whatever a GPU may say
        entry["ended"] = f"with {type(error).__name__}: {str(error)[:300]}"
    write(out, name, entry)


def session(names: Sequence[str], scale: Scale, out: Path) -> bool:
    """Run parts, each in a process of its own, and print what they found; whether all were good."""
    end = time.monotonic() + 60 * MINUTES - 10
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        before = {"load": os.getloadavg(), "on_the_card": on_the_card()}
        write(out, name, {"before": before, "good": False, "ended": "before its first result"})
        context, arguments = multiprocessing.get_context("spawn"), (name, scale, out)
        process = context.Process(target=run_part, args=arguments, daemon=True)
        process.start()
        process.join(max(0, min(PARTS[name][1], end - time.monotonic())))
        if process.is_alive():
            process.kill()
            process.join()
            write(out, name, read(out)[name] | {"ended": "because its time was up"})

        entry = read(out)[name]
        print(f"{'good' if entry['good'] else 'LOOK'}  {name} ended {entry['ended']}")
        for key, numbers in entry.get("results", {}).items():
            print(f"      {key}: {json.dumps(numbers)}", flush=True)
    return all(read(out)[name]["good"] for name in names)


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that were asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--out", type=Path, default=DATA.parent / "runs" / "gpu.json")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no CUDA device; this session measures one.", file=sys.stderr)
        return 2
    return 0 if session(given.only, Scale(), given.out) else 1


if __name__ == "__main__":
    sys.exit(main())
