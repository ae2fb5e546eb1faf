"""What only a GPU can show, as one command of at most 25 minutes: a table with a verdict a row.

    python tests/bench/gpu_session.py               # goes on where it was stopped
    python tests/bench/gpu_session.py --minutes 10  # a piece of it; the same command goes on
    python tests/bench/gpu_session.py --out FOLDER  # default: data/results/gpu

Each part is a process of its own, so that memory is its own and an error ends no other; what it
found lies in `FOLDER/part.json`, and a part that lies there is not made again. Random weights at
the true shapes of Qwen2.5-0.5B and SmolLM2-360M, so no network; the real pair only where it can be
loaded. On a machine with torch alone it needs the wheels of transformers, math-verify, rich, typer.
What the table calls predicted was computed without a card. Exits with 0 if every verdict is good,
with 1 if not, with 2 if there is no CUDA device.
"""

import argparse
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import mini_mrl
from mrl import allocation, rollout
from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.learning import learn
from mrl.modes import MODES
from mrl.policy import Policy
from mrl.runtime import cuda_graph
from mrl.runtime.loading import _enable_checkpointing, load_policy, load_tokenizer
from mrl.runtime.memory import estimate
from mrl.runtime.pairs import choose_pair
from mrl.runtime.problems import load_problems, save_problems
from mrl.runtime.verifier import Verifier
from mrl.samples import Problem, TrainingSample, Verdict

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 25
GIB = 2**30
PREDICTED = {  # computed without a card; for an H100 where nothing else is said
    "padding": "finite; a gap below 0.1",
    "decode-qwen2.5": "3.5 to 5 ms a token recorded, 15 to 25 plain; 1096 kernels",
    "decode-smollm2": "3.5 to 5 ms a token recorded, 15 to 25 plain; 1448 kernels",
    "memory-qwen2.5": "15.8 GiB",
    "memory-smollm2": "12.2 GiB",
    "memory-qwen2.5-checkpointing": "11.0 GiB",
    "memory-smollm2-checkpointing": "7.6 GiB",
    "update-qwen2.5": "2 to 3 s",
    "update-smollm2": "2 to 3 s",
    "ragged": "a second more for every new shape with cuDNN's attention",
    "swapping": "the same time after a recording as before it",
    "whole-resident": "8 to 12 s a step",
}
SHAPES = {
    "qwen2.5": (Qwen2ForCausalLM, Qwen2Config, dict(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, rope_theta=1e6)),
    "smollm2": (LlamaForCausalLM, LlamaConfig, dict(
        vocab_size=49152, hidden_size=960, intermediate_size=2560, num_hidden_layers=32,
        num_attention_heads=15, num_key_value_heads=5, rope_theta=1e5)),
}  # fmt: skip


@dataclass
class Scale:
    """Where the parts run and how large they are; the tests make them small, on a CPU."""

    device: str = "cuda:0"
    prompt: int = 150
    completion: int = 400
    prompts: int = 16
    group: int = 8
    micro_batch: int = 4096
    steps: int = 20  # of the tiny pair
    shape: dict | None = None  # changes of the true shapes

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")


Part = Callable[[Scale], tuple[dict, bool]]  # figures, and whether they are as they should be


def policy_of(scale: Scale, name: str, **settings) -> Policy:
    """Random weights of a true shape, on the device."""
    model, config, shape = SHAPES[name]
    settings = {
        "micro_batch": scale.micro_batch,
        "learning_rate": 1e-6,
        "dtype": "mixed",
    } | settings
    settings |= {"max_new_tokens": scale.completion, "group_size": scale.group}
    torch.manual_seed(0)
    with torch.device(scale.device):
        made = model(config(**{**shape, **(scale.shape or {})}, tie_word_embeddings=True))
    if settings.get("checkpointing"):
        _enable_checkpointing(made)
    tokenizer = load_tokenizer(str(DATA / "tiny" / "qwen-tiny"))
    policy = Policy(PolicyConfig(name, name, **settings), made, tokenizer)
    policy.suppressed[policy.end_ids] = True  # every completion is as long as it may be
    policy.graph_decode = cuda_graph.decode
    return policy


def samples_of(scale: Scale) -> list[TrainingSample]:
    """Groups that all teach, of full length."""
    return [
        TrainingSample([5] * (scale.prompt - 2) + [6 + number % 50, 7 + number // 50],
                       [8 + (i + t) % 40 for t in range(scale.completion)],
                       advantage=(-1.0) ** i, sampled_logprobs=[-4.0] * scale.completion)
        for number in range(scale.prompts) for i in range(scale.group)
    ]  # fmt: skip


def wait(scale: Scale) -> float:
    """The time when the device has done its work, seconds."""
    if scale.cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def prompts_of(scale: Scale) -> list[list[int]]:
    """Of several lengths."""
    return [[5] * (scale.prompt - number % 7) for number in range(scale.prompts)]


def sample(policy: Policy, scale: Scale, tokens: int = 0) -> rollout.Completions:
    """Completions of prompts of several lengths."""
    prompts = prompts_of(scale)
    with policy.precision():
        return rollout.sample_completions(
            policy.model, prompts, scale.group, max_new_tokens=tokens or scale.completion,
            temperature=1.0, end_ids=torch.tensor(policy.end_ids, device=scale.device),
            suppressed=policy.suppressed, generator=torch.Generator().manual_seed(0),
            decode=policy.graph_decode,
        )  # fmt: skip


def gaps_of(policy: Policy, scale: Scale, made: rollout.Completions) -> torch.Tensor:
    """Between the log-probs of sampling and those of learning, nats, [rows, tokens].

    It is the one test of a recording that needs no equal draws. A fifth of the rows is enough.
    """
    prompts = [prompt for prompt in prompts_of(scale) for _ in range(scale.group)][::5]
    scored = policy.logprobs_of(prompts, made.token_ids[::5].tolist())
    return (torch.tensor(scored) - made.logprobs[::5].cpu()).abs()


def watched(scale: Scale) -> list[ProfilerActivity]:
    """What the profiler notes."""
    return [ProfilerActivity.CUDA] if scale.cuda else [ProfilerActivity.CPU]


def plain_loop() -> patch:
    """Within it, sampling is not recorded."""
    return patch.object(cuda_graph, "can_record", lambda cache, device: False)


# ------------------------------------------------------------------------------ parts


def card(scale: Scale) -> tuple[dict, bool]:
    """What it is."""
    found = {"torch": torch.__version__, "transformers": transformers.__version__}
    if scale.cuda:
        about = torch.cuda.get_device_properties(0)
        found |= {"name": about.name, "GiB": round(about.total_memory / GIB, 1)}
        found |= {"free": round(torch.cuda.mem_get_info()[0] / GIB, 1)}
    return found, True


def tokens(scale: Scale) -> tuple[dict, bool]:
    """The tiny pair: in float32 the CPU's completions, seed by seed; in mixed sampled = scored."""
    figures, good = {}, True
    problems = load_problems(DATA / "words" / "heldout.jsonl")
    for name in ("qwen-tiny", "llama-tiny"):
        written = []
        for device, dtype in (
            ("cpu", "float32"),
            (scale.device, "float32"),
            (scale.device, "mixed"),
        ):
            config = PolicyConfig(name, str(DATA / "tiny" / name), dtype=dtype)
            policy = load_policy(config, device=device)
            groups = policy.rollout(
                problems[:: 360 // scale.prompts], torch.Generator().manual_seed(0)
            )
            written.append([(g.prompt_ids, r) for g in groups for r in g.rollouts])
        ids = [[r.completion_ids for _, r in rows] for rows in written]
        equal = sum(a == b for a, b in zip(ids[0], ids[1], strict=True)) / len(ids[0])
        scored = policy.logprobs_of([p for p, _ in written[2]], ids[2])
        pairs = zip(scored, (r.logprobs for _, r in written[2]), strict=True)
        gaps = torch.cat([(torch.tensor(a) - torch.tensor(b)).abs() for a, b in pairs])
        figures[name] = {
            "equal": equal,
            "gap_mean": float(gaps.mean()),
            "gap_max": float(gaps.max()),
        }
        good &= equal > 0.98 and float(gaps.mean()) < 0.02
    return figures, good


def program(folder: Path | None, command: str, *settings: str) -> tuple[int, list[str]]:
    """A run of the whole program, into a folder; its exit code and what it printed."""
    settings = [*settings, f"runs={folder}"] if folder else settings
    words = [*command.split(), *(word for s in settings for word in ("--set", s)), "--plain"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "mini_mrl.py"), *words], capture_output=True, text=True
    )
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def small_run(scale: Scale, name: str, *options: str, steps: int = 0) -> tuple[int, list[str]]:
    """A run of the tiny pair on the device."""
    folder = Path(os.environ["SESSION"], "runs")
    shutil.rmtree(folder / name, ignore_errors=True)
    words = f"--pair tiny --steps {steps or scale.steps} --name {name} {' '.join(options)}"
    heldout = f'heldout=["{DATA}/words/newtemplates.jsonl"]'
    return program(
        folder, words, f"device={scale.device}", f"prompts_per_step={scale.prompts}",
        "eval_samples=1", f"group_size={scale.group}", heldout,
    )  # fmt: skip


def metrics_of(name: str) -> list[dict]:
    """Of a run, without times."""
    text = Path(os.environ["SESSION"], "runs", name, "metrics.jsonl").read_text("utf-8")
    return [
        {key: v for key, v in json.loads(line).items() if not key.startswith(("time/", "memory/"))}
        for line in text.splitlines()
    ]


def runs(scale: Scale) -> tuple[dict, bool]:
    """The program on the device, in all placements and resumed: where do metrics first differ?"""
    half, solved, differing = max(1, scale.steps // 2), {}, {}
    for name in ("resident", "swap", "parallel", "resumed"):
        steps = half if name == "resumed" else scale.steps
        placement = "resident" if name == "resumed" else name
        code, printed = small_run(scale, name, f"--placement {placement}", steps=steps)
        if name == "resumed" and not code:
            config = Path(os.environ["SESSION"], "runs", name, "config.json")
            settings = json.loads(config.read_text("utf-8"))
            config.write_text(json.dumps(settings | {"steps": scale.steps}), encoding="utf-8")
            code, printed = program(None, f"resume {config.parent}")
        if code:
            return {name: printed[-5:]}, False
        lines, first = metrics_of(name), metrics_of("resident")
        pairs = zip(lines, first, strict=True)
        differing[name] = min((a["step"] for a, b in pairs if a != b), default=None)
        solved[name] = round(sum(line["reward"] for line in lines[-4:]) / 4, 3)
    figures = {"first_differing_step": differing, "solve_rates": solved}
    return figures, max(solved.values()) - min(solved.values()) < 0.2


def modes(scale: Scale) -> tuple[dict, bool]:
    """Every mode for two steps: its exit code, and the last line where it is not 0."""
    figures = {}
    for mode in MODES:
        code, printed = small_run(scale, f"mode-{mode}", f"--mode {mode}", steps=2)
        figures[mode] = code and printed[-1]
    return figures, not any(figures.values())


def memory(scale: Scale, name: str = "qwen2.5", **settings) -> tuple[dict, bool]:
    """The peak of a learning step, with the optimizer's state in place, against the estimate."""
    policy, samples = policy_of(scale, name, **settings), samples_of(scale)
    config = RunConfig([policy.config], prompts_per_step=scale.prompts, eval_samples=1)
    expected = estimate(policy, config, scale.prompt).peak
    notes = learn(policy, samples).warnings
    if scale.cuda:
        torch.cuda.reset_peak_memory_stats()
    notes += learn(policy, samples).warnings
    peak = torch.cuda.max_memory_allocated() if scale.cuda else expected
    figures = {"peak": round(peak / GIB, 2), "estimate": round(expected / GIB, 2), "notes": notes}
    return figures, not notes and 0.9 < expected / peak < 1.1


def decode(scale: Scale, name: str = "qwen2.5") -> tuple[dict, bool]:
    """Milliseconds a token, plain and recorded; whether the recording is used, and right."""
    policy, figures, made = policy_of(scale, name), {}, None
    for way in ("plain", "recorded"):
        with plain_loop() if way == "plain" else nullcontext():
            sample(policy, scale, min(20, scale.completion))  # kernels are chosen, memory is there
            started = wait(scale)
            made = sample(policy, scale)
            figures[f"{way}_ms"] = round(1e3 * (wait(scale) - started) / scale.completion, 2)
    gaps = gaps_of(policy, scale, made)
    first, later = gaps.split([cuda_graph.RECORD_AFTER, gaps.shape[1] - cuda_graph.RECORD_AFTER], 1)
    # other weights at other places: a new recording must see both
    learn(policy, samples_of(scale)[: scale.group])
    for device in ("cpu", scale.device):
        allocation._move(policy, allocation.PARTS, device, {})
    moved = gaps_of(policy, scale, sample(policy, scale))
    figures |= {
        "gap_first": float(first.mean()),
        "gap_recorded": float(later.mean()),
        "gap_after_update": float(moved.mean()),
        "believed": policy.model in cuda_graph._compared,
        "failures": cuda_graph._failures,
    }
    with plain_loop(), profile(activities=watched(scale)) as seen:
        sample(policy, scale, 4)
    events = [event for event in seen.events() if "cuda" in str(event.device_type).lower()]
    words = ("mha", "attention", "flash", "sdpa")
    figures |= {
        "kernels_a_token": len(events) / 4,
        "attention": sorted({e.name[:60] for e in events if any(w in e.name for w in words)}),
    }
    right = figures["believed"] and max(figures["gap_recorded"], figures["gap_after_update"]) < 0.02
    return figures, right and (not scale.cuda or figures["plain_ms"] > 1.5 * figures["recorded_ms"])


def padding(scale: Scale) -> tuple[dict, bool]:
    """Are logits after prompts of several lengths finite, and those of each prompt alone?"""
    figures, good = {}, True
    for name in SHAPES:
        policy = policy_of(scale, name)
        prompts = [[5 + n % 3] * (scale.prompt - 7 * n % (scale.prompt // 2)) for n in range(6)]
        with policy.precision(), torch.no_grad():
            together = rollout._prefill(policy.model, prompts, 1)[0].float()
            alone = [rollout._prefill(policy.model, [prompt], 1)[0].float() for prompt in prompts]
        gap = float((together - torch.cat(alone)).abs().max())
        figures[name] = {"finite": bool(together.isfinite().all()), "gap": round(gap, 4)}
        good &= figures[name]["finite"] and gap < 0.1
    return figures, good


def update(scale: Scale, name: str = "qwen2.5") -> tuple[dict, bool]:
    """Seconds of a learning step by micro-batch, and which kernels they go to."""
    figures, notes, samples = {}, [], samples_of(scale)
    policy = policy_of(scale, name)
    learn(policy, samples[: 2 * scale.group])
    for size in (scale.micro_batch // 2, scale.micro_batch, 2 * scale.micro_batch):
        policy.micro_batch = size
        started = wait(scale)
        notes += learn(policy, samples).warnings
        figures[f"seconds_{size}"] = round(wait(scale) - started, 2)
    policy.micro_batch = scale.micro_batch
    with profile(activities=watched(scale)) as seen:
        learn(policy, samples[: 2 * scale.group])
    shares: dict[str, float] = {}
    for event in seen.events():
        if not scale.cuda or "cuda" in str(event.device_type).lower():
            kinds = (("attention", ("mha", "attention")), ("products", ("gemm", "cutlass", "mm")))
            kind = next((k for k, words in kinds if any(w in event.name for w in words)), "others")
            shares[kind] = shares.get(kind, 0.0) + event.time_range.elapsed_us()
    total = sum(shares.values()) or 1.0
    return figures | {"shares": {k: round(v / total, 2) for k, v in shares.items()}}, not notes


def ragged(scale: Scale) -> tuple[dict, bool]:
    """Learning from completions of all lengths, new shapes each time, as in a run.

    With cuDNN's attention, too, which the program turns off.
    """
    figures, rng, good = {}, random.Random(0), True
    for cudnn in (False, True):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        policy = policy_of(scale, "qwen2.5")
        learn(policy, samples_of(scale)[: scale.group])
        seconds, notes, skipped = [], [], 0
        for _ in range(3):
            samples = []
            for one in samples_of(scale):
                end = rng.randint(scale.completion // 5, scale.completion)
                cut = {"completion_ids": one.completion_ids[:end]}
                cut["sampled_logprobs"] = one.sampled_logprobs[:end]
                samples.append(replace(one, **cut))
            started = wait(scale)
            stats = learn(policy, samples)
            seconds.append(round(wait(scale) - started, 2))
            notes += stats.warnings
            skipped += stats.updates != 1
        found = {"seconds": seconds, "notes": notes, "skipped": skipped}
        figures["cudnn" if cudnn else "without"] = found
        good &= cudnn or not (notes or skipped)
        del policy
    torch.backends.cuda.enable_cudnn_sdp(False)
    return figures, good


def swapping(scale: Scale) -> tuple[dict, bool]:
    """Seconds to move a whole policy out and back: first, again, after a recording."""
    policy, figures, waiting = policy_of(scale, "qwen2.5"), {}, {}
    learn(policy, samples_of(scale)[: scale.group])
    for when in ("first", "again", "recorded"):
        if when == "recorded":
            sample(policy, scale, 8)
        started = wait(scale)
        moved = allocation._move(policy, allocation.PARTS, "cpu", waiting)
        away = wait(scale)
        allocation._move(policy, allocation.PARTS, scale.device, {})
        figures[when] = {"out": round(away - started, 2), "back": round(wait(scale) - away, 2)}
    figures["GiB"] = round(moved / GIB, 2)
    return figures, figures["recorded"]["out"] < 2 * figures["again"]["out"] + 0.2


def failing(scale: Scale) -> tuple[dict, bool]:
    """A recording that fails: its cause, the stream afterwards, and whether memory comes back."""
    policy = policy_of(replace(scale, prompts=2), "qwen2.5")
    stream = torch.cuda.current_stream() if scale.cuda else None

    def spoil(module: torch.nn.Module, given: tuple, output: object) -> None:
        if not scale.cuda or torch.cuda.is_current_stream_capturing():
            output.logits.sum().item()  # a host that waits cannot be recorded

    hook = policy.model.register_forward_hook(spoil)
    few = replace(scale, prompts=2)
    sample(policy, few, 12)
    hook.remove()
    figures = {"failures": list(cuda_graph._failures)}
    good = bool(gaps_of(policy, few, sample(policy, few, 12)).mean() < 0.02)
    if not scale.cuda:
        return figures, good
    figures["same_stream"] = torch.cuda.current_stream() == stream
    free, _ = torch.cuda.mem_get_info()
    try:
        for share in (0.6, 0.8):  # the second needs what the first one's cache holds
            torch.empty(int(share * free), dtype=torch.uint8, device=scale.device)
        figures["memory_comes_back"] = True
    except torch.OutOfMemoryError as error:
        figures["memory_comes_back"] = str(error)[:150]
    good &= figures["same_stream"] and len(figures["failures"]) == 1
    return figures, good and figures["memory_comes_back"] is True


def out_of_memory(scale: Scale) -> tuple[dict, bool]:
    """A real one: what the person reads, whether it goes on, and what is left behind."""
    if not scale.cuda:
        return {}, True
    policy, samples = policy_of(scale, "qwen2.5"), samples_of(scale)
    learn(policy, samples[: scale.group])
    rest, total = torch.cuda.memory_allocated(), torch.cuda.get_device_properties(0).total_memory
    config = RunConfig([policy.config], prompts_per_step=scale.prompts, eval_samples=1)
    room = 1.15 * estimate(policy, config, scale.prompt).peak
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, room / total))
    policy.micro_batch = 8 * scale.micro_batch  # far more than that room
    stats = learn(policy, samples)
    left = torch.cuda.memory_allocated()
    figures = {"notes": stats.warnings, "rest": round(rest / GIB, 2), "left": round(left / GIB, 2)}
    return figures, bool(stats.warnings) and stats.updates == 1 and left < 1.02 * rest


def twice(scale: Scale) -> tuple[dict, bool]:
    """The same learning step twice: equal bits? And with deterministic algorithms?"""
    figures, samples = {}, samples_of(scale)[: 4 * scale.group]
    for strict in (False, True):
        torch.use_deterministic_algorithms(strict)
        weights = []
        for _ in range(2):
            policy = policy_of(scale, "smollm2", learning_rate=1e-4)
            started = wait(scale)
            learn(policy, samples)
            seconds = wait(scale) - started
            weights.append([p.detach().clone() for p in policy.model.parameters()])
            del policy
        equal = all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
        figures["strict" if strict else "usual"] = {"equal": equal, "seconds": round(seconds, 2)}
    torch.use_deterministic_algorithms(False)
    return figures, figures["strict"]["equal"]


def pair_of(scale: Scale, folder: Path) -> list[Path]:
    """Random weights of the true shapes with the tiny pair's tokenizers, as directories."""
    made = []
    for name, tokens in (("qwen2.5", "qwen-tiny"), ("smollm2", "llama-tiny")):
        made.append(folder / name)
        if not (folder / name / "config.json").exists():
            tokenizer = load_tokenizer(str(DATA / "tiny" / tokens))
            model = policy_of(scale, name).model
            model.generation_config.eos_token_id = tokenizer.eos_token_id
            model.save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)
            fill_vocabulary(folder / name / "tokenizer.json", model.config.vocab_size)
    problems = load_problems(DATA / "words" / "train.jsonl")
    for part, start, count in (("train", 0, 4 * scale.prompts), ("heldout", 600, scale.prompts)):
        texts = [" ".join(p.prompt for p in problems[start + 3 * n :][:3]) for n in range(count)]
        chosen = [Problem(f"{part}-{n}", text[:330], "7") for n, text in enumerate(texts)]
        save_problems(folder / f"{part}.jsonl", chosen)  # about as long as GSM8K's
    return made


def fill_vocabulary(path: Path, size: int) -> None:
    """Give a tokenizer as many tokens as its model: one that knows too few is refused."""
    document = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    first = max([*vocabulary.values(), *(token["id"] for token in document["added_tokens"])]) + 1
    for number in range(first, size):
        vocabulary[f"unused{number}"] = number
    path.write_text(json.dumps(document), encoding="utf-8")


def by_chance(self: Verifier, answer: str, completion: str, finished: bool = True) -> Verdict:
    """A verdict for what random weights write: two of five are right, the same ones each time."""
    byte = hashlib.blake2b(completion.encode("utf-8", "replace")).digest()[0]
    return Verdict.CORRECT if byte < 102 else Verdict.WRONG


def whole(scale: Scale, placement: str) -> tuple[dict, bool]:
    """The whole program at the true shapes: seconds by phase, peak, and sampled against scored."""
    folder = Path(os.environ["SESSION"], "whole")
    pair = pair_of(scale, folder)
    name, steps = f"whole-{placement}", min(3, scale.steps + 1)
    shutil.rmtree(folder / name, ignore_errors=True)
    settings = {
        "device": scale.device, "max_new_tokens": scale.completion, "dtype": "mixed",
        "micro_batch": scale.micro_batch, "learning_rate": 1e-6, "prompts_per_step": scale.prompts,
        "group_size": scale.group, "eval_samples": 1, "checkpoint_every": 0, "runs": f"'{folder}'",
        "train": f"'{folder}/train.jsonl'", "heldout": f"['{folder}/heldout.jsonl']",
    }  # fmt: skip
    words = f"--pair {pair[0]},{pair[1]} --steps {steps} --placement {placement} --name {name}"
    words = [*words.split(), "--plain", "--debug"]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    with ExitStack() as stack:
        stack.enter_context(patch.object(Verifier, "verify", by_chance))
        stack.enter_context(patch.object(Verifier, "check_answer", lambda self, answer: True))
        code = mini_mrl.main(words)
    if code:
        return {"exit": code}, False
    text = (folder / name / "metrics.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    figures = {"peak": round(max(line["memory/peak_bytes"] for line in lines) / GIB, 1)}
    for line in lines:
        times = {key[5:]: round(line[key], 2) for key in line if key.endswith("_s")}
        figures[f"{line['policy']} {line['step']}"] = times
    shutil.rmtree(folder / name)  # a checkpoint of 10 GB
    skipped = sum(line["update_skipped"] for line in lines)
    return figures | {"skipped": skipped, "failures": cuda_graph._failures}, not skipped


def real(scale: Scale) -> tuple[dict, bool]:
    """Ten steps of the real pair, where its weights and problems are."""
    pair, why = choose_pair()
    if pair != "qwen-smol" or not scale.cuda:
        return {"not here": why}, True
    folder = Path(os.environ["SESSION"], "runs")
    shutil.rmtree(folder / "real", ignore_errors=True)
    code, lines = program(folder, f"--pair {pair} --steps 10 --name real")
    return {"first": lines[:4], "last": lines[-4:]}, code == 0


def tasks() -> dict[str, Part]:
    """The parts in their order, cheap and telling ones first."""
    made: dict[str, Part] = {"card": card, "tokens": tokens, "padding": padding}
    for name in SHAPES:
        made[f"decode-{name}"] = lambda scale, name=name: decode(scale, name)
        made[f"memory-{name}"] = lambda scale, name=name: memory(scale, name)
        made[f"update-{name}"] = lambda scale, name=name: update(scale, name)
    made |= {"ragged": ragged, "swapping": swapping, "failing": failing}
    for placement in ("resident", "swap"):
        made[f"whole-{placement}"] = lambda scale, placement=placement: whole(scale, placement)
    made |= {"runs": runs, "modes": modes, "out-of-memory": out_of_memory, "twice": twice}
    for name in SHAPES:
        made[f"memory-{name}-checkpointing"] = lambda scale, name=name: memory(
            scale, name, micro_batch=2 * scale.micro_batch, checkpointing=True
        )
    return made | {"real": real}


# ------------------------------------------------------------------------------ the session


def do(name: str, scale: Scale, out: Path) -> None:
    """One part, into its file; an error is a verdict, too."""
    os.environ["SESSION"] = str(out)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products want it
    started = time.perf_counter()
    try:
        figures, good = tasks()[name](scale)
    except Exception as error:  # whatever a GPU may say
        figures, good = {"error": f"{type(error).__name__}: {str(error)[:300]}"}, False
    seconds = round(time.perf_counter() - started, 1)
    found = {"part": name, "good": good, "seconds": seconds, "figures": figures}
    (out / f"{name}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def table(out: Path) -> tuple[str, bool]:
    """A row a part, in Markdown; and whether all are there and good."""
    rows, good = (
        ["| part | seconds | verdict | predicted | figures |", "|---|---|---|---|---|"],
        True,
    )
    for name in tasks():
        path = out / f"{name}.json"
        if not path.exists():
            rows.append(f"| {name} | | not made | {PREDICTED.get(name, '')} | |")
            good = False
            continue
        found = json.loads(path.read_text("utf-8"))
        verdict = "good" if found["good"] else "**look**"
        cells = (name, found["seconds"], verdict, PREDICTED.get(name, ""))
        rows.append(f"| {' | '.join(map(str, cells))} | {json.dumps(found['figures'])} |")
        good &= found["good"]
    return "\n".join(rows) + "\n", good


def main(arguments: list[str] | None = None) -> int:
    """All parts that are missing, each in a process, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "results" / "gpu")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="then it stops")
    parser.add_argument("--part", help="this one alone, in this process")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no CUDA device; this session measures one.", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part:
        logging.basicConfig(level=logging.WARNING)
        do(given.part, Scale(), given.out)
        return 0
    end = time.monotonic() + 60 * given.minutes
    for name in tasks():
        if (given.out / f"{name}.json").exists() or end - time.monotonic() < 20:
            continue
        print(name, flush=True)
        command = [sys.executable, __file__, "--out", str(given.out), "--part", name]
        part = subprocess.Popen(command, start_new_session=True)
        try:
            part.wait(timeout=end - time.monotonic())
        except subprocess.TimeoutExpired:
            os.killpg(part.pid, signal.SIGKILL)  # with the programs that it started
            part.wait()
            print(f"{name}: the time is up; the same command goes on with it.")
    text, good = table(given.out)
    (given.out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
