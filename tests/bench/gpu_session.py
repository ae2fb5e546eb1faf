"""What only a GPU can show: one command of at most ten minutes, one JSON, a verdict a line.

    python tests/bench/gpu_session.py               # goes on where it was stopped
    python tests/bench/gpu_session.py --out FILE    # default: data/results/gpu.json

Each part is a process of its own, so that memory is its own and an error ends no other; what it
found is an entry of FILE, and a part that has one is not made again. Random weights at the true
shapes of Qwen2.5-0.5B and SmolLM2-360M, so no network; the real pair only where it can be loaded.
On a machine with torch alone it needs the wheels of transformers, math-verify, rich, typer. What is
called predicted was computed without a card. Exits with 0 if every verdict is good, with 1 if not,
with 2 if there is no CUDA device.
"""

import argparse
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
from contextlib import nullcontext
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
from mrl.learning import LARGEST_MEAN_GAP, learn
from mrl.modes import MODES
from mrl.policy import Policy
from mrl.runtime import cuda_graph
from mrl.runtime.loading import (
    _enable_checkpointing,
    claim_process,
    load_policy,
    load_tokenizer,
)
from mrl.runtime.memory import PINNED, estimate
from mrl.runtime.pairs import choose_pair
from mrl.runtime.problems import load_problems, save_problems
from mrl.samples import Problem, TrainingSample

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 10
GIB = 2**30
PREDICTED = {  # computed without a card; for an H100 where nothing else is said
    "padding": "finite; a gap below 0.1",
    "decode-qwen2.5": "3.5 to 5 ms a token recorded, 15 to 25 plain; 1096 kernels",
    "decode-smollm2": "3.5 to 5 ms a token recorded, 15 to 25 plain; 1448 kernels",
    "memory-qwen2.5": "15.8 GiB",
    "memory-smollm2": "12.2 GiB",
    "memory-qwen2.5-checkpointing": "11.0 GiB",
    "memory-smollm2-checkpointing": "7.6 GiB",
    "token": "drawing 1.0 of 3.3 ms (4090: 2.2 of 6.5), casts 0.8, half the rows 0.6 less",
    "attention": "memory-efficient or flash kernels behind each mask, never plain products",
    "recordings": "the same memory after each rollout",
    "update-qwen2.5": "2 to 3 s",
    "update-smollm2": "2 to 3 s",
    "ragged": "a second more for every new shape with cuDNN's attention",
    "swapping": "6 GiB pinned for 5.5; the same time after a recording as before it; 20 GiB/s",
    "whole-resident": "6 to 7 s a step (4090: 11 to 13)",
    "whole-swap": "a second more than resident",
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
    steps: int = 8  # of the tiny pair
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


def estimate_of(policy: Policy, scale: Scale) -> int:
    """What the program expects a policy to need at the peak, bytes."""
    config = RunConfig([policy.config], prompts_per_step=scale.prompts, eval_samples=1)
    device = torch.device(scale.device)
    return estimate(policy.model, policy.config, config, scale.prompt, device).peak


def token_ms(policy: Policy, scale: Scale) -> float:
    """Milliseconds a sampled token."""
    sample(policy, scale, min(20, scale.completion))  # kernels are chosen, memory is there
    started = wait(scale)
    sample(policy, scale)
    return round(1e3 * (wait(scale) - started) / scale.completion, 2)


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
        torch.zeros(1, device=scale.device)  # from here on the allocator has its settings
        allocator = torch.cuda.memory._snapshot()["allocator_settings"]
        found |= {"grows": allocator.get("expandable_segments"), "cuda": torch.version.cuda}
        found |= {"cudnn": torch.backends.cudnn.version()}
        return found, bool(found["grows"])
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


def program(words: list[str]) -> tuple[int, list[str]]:
    """A run of the whole program in a process of its own: its exit code and what it printed."""
    command = [sys.executable, str(ROOT / "mini_mrl.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def small_words(scale: Scale, name: str, *options: str, steps: int = 0) -> list[str]:
    """The command line of a run of the tiny pair on the device."""
    folder = Path(os.environ["SESSION"], "runs")
    shutil.rmtree(folder / name, ignore_errors=True)
    words = f"--plain --pair tiny --steps {steps or scale.steps} --name {name} {' '.join(options)}"
    settings = {
        "device": scale.device, "prompts_per_step": scale.prompts, "group_size": scale.group,
        "eval_samples": 1, "heldout": [f"{DATA}/words/newtemplates.jsonl"], "runs": str(folder),
    }  # fmt: skip
    return [*words.split(), *set_words(settings)]


def set_words(settings: dict[str, object]) -> list[str]:
    """Settings as the command line takes them."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value!r}")]


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
        code, printed = program(small_words(scale, name, f"--placement {placement}", steps=steps))
        if name == "resumed" and not code:
            config = Path(os.environ["SESSION"], "runs", name, "config.json")
            settings = json.loads(config.read_text("utf-8"))
            config.write_text(json.dumps(settings | {"steps": scale.steps}), encoding="utf-8")
            code, printed = program(["resume", str(config.parent), "--plain"])
        if code:
            return {name: printed[-5:]}, False
        lines, first = metrics_of(name), metrics_of("resident")
        pairs = zip(lines, first, strict=True)
        differing[name] = min((a["step"] for a, b in pairs if a != b), default=None)
        solved[name] = round(sum(line["reward"] for line in lines[-4:]) / 4, 3)
    figures = {"first_differing_step": differing, "solve_rates": solved}
    return figures, max(solved.values()) - min(solved.values()) < 0.2


def modes(scale: Scale) -> tuple[dict, bool]:
    """Every mode for two steps, all in this process: the exit codes."""
    figures = {}
    for mode in MODES:
        options = (f"--mode {mode}", "--placement resident")
        figures[mode] = mini_mrl.main(small_words(scale, f"mode-{mode}", *options, steps=2))
    return figures, not any(figures.values())


def memory(scale: Scale, name: str = "qwen2.5", **settings) -> tuple[dict, bool]:
    """The peak of a learning step, with the optimizer's state in place, against the estimate."""
    policy, samples = policy_of(scale, name, **settings), samples_of(scale)
    expected = estimate_of(policy, scale)
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
    figures["kernels_a_token"] = len(events) / 4
    right = figures["believed"] and max(figures["gap_recorded"], figures["gap_after_update"]) < 0.02
    return figures, right and (not scale.cuda or figures["plain_ms"] > 1.5 * figures["recorded_ms"])


def token(scale: Scale) -> tuple[dict, bool]:
    """Where a recorded token's time goes: drawing, autocast's casts, rows that have ended."""
    policy = policy_of(scale, "qwen2.5")
    figures = {"token_ms": token_ms(policy, scale)}
    half = replace(scale, prompts=max(1, scale.prompts // 2))
    figures["half_the_rows_ms"] = token_ms(policy, half)

    rows, vocab = scale.prompts * scale.group, policy.model.config.vocab_size
    uniform = torch.rand(rows, device=scale.device)
    for dtype in (torch.float32, torch.float64):  # the program's is float64
        logprobs = torch.randn(rows, vocab, device=scale.device).log_softmax(-1).to(dtype)
        rollout.draw(logprobs, uniform)
        started = wait(scale)
        for _ in range(20):
            logprobs.exp().cumsum(-1) if dtype == torch.float32 else rollout.draw(logprobs, uniform)
        figures[f"drawing_in_{str(dtype)[6:]}_ms"] = round(1e3 * (wait(scale) - started) / 20, 2)

    policy.model.bfloat16()  # nothing is left for autocast to cast
    policy.mixed_precision = False
    figures["without_casts_ms"] = token_ms(policy, scale)
    return figures, cuda_graph._failures == []


def attention(scale: Scale) -> tuple[dict, bool]:
    """The attention kernels behind the masks of padded prompts, of a token and of learning."""
    policy, figures = policy_of(scale, "qwen2.5"), {}
    few = samples_of(scale)[: scale.group]

    def read_prompts() -> None:
        with policy.precision(), torch.no_grad():
            rollout._prefill(policy.model, prompts_of(scale), scale.group)

    jobs = {
        "prompts": read_prompts,
        "token": lambda: sample(policy, scale, 4),
        "learning": lambda: learn(policy, few),
    }
    for name, job in jobs.items():
        with plain_loop():
            job()
            with profile(activities=watched(scale)) as seen:
                job()
                wait(scale)
        words = ("mha", "attention", "flash", "sdpa")
        figures[name] = sorted(
            {e.name[:60] for e in seen.events() if any(w in e.name for w in words)}
        )
    return figures, all(figures.values())


def recordings(scale: Scale) -> tuple[dict, bool]:
    """GiB that the allocator holds after each of five rollouts: does a recording leave any?"""
    policy, held = policy_of(scale, "qwen2.5"), []
    for _ in range(5):
        sample(policy, scale, min(16, scale.completion))
        held.append(round(torch.cuda.memory_reserved() / GIB, 2) if scale.cuda else 0.0)
    return {"held": held}, held[-1] <= held[1]


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
    """Seconds to move a whole policy out and back: first, again, after a recording; pinned GiB."""
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
    blocks = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in waiting.values()}
    pinned = sum(block.nbytes() for block in blocks.values())
    figures |= {"GiB": round(moved / GIB, 2), "pinned": round(pinned / GIB, 2)}
    figures["GiB_a_second"] = round(moved / GIB / max(figures["again"]["out"], 1e-3), 1)
    # the allocator rounds a small model's few blocks up by more
    little = pinned < max(PINNED * moved, allocation.BLOCK)
    return figures, little and figures["recorded"]["out"] < 2 * figures["again"]["out"] + 0.2


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
    room = 1.15 * estimate_of(policy, scale)
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


JUDGE = '''"""Two of five completions are right, the same ones each time: random weights write."""

import hashlib


def judge(answer, text):
    """Whether the completion is one of them."""
    return hashlib.blake2b(text.encode("utf-8", "replace")).digest()[0] < 102
'''


def whole(scale: Scale, placement: str) -> tuple[dict, bool]:
    """The whole program at the true shapes: seconds by phase, peak, and sampled against scored."""
    folder = Path(os.environ["SESSION"], "whole")
    pair = pair_of(scale, folder)
    (folder / "judge.py").write_text(JUDGE, encoding="utf-8")
    name, steps = f"whole-{placement}", min(3, scale.steps + 1)
    shutil.rmtree(folder / name, ignore_errors=True)
    settings = {
        "device": scale.device, "max_new_tokens": scale.completion, "dtype": "mixed",
        "micro_batch": scale.micro_batch, "learning_rate": 1e-6, "prompts_per_step": scale.prompts,
        "group_size": scale.group, "eval_samples": 1, "checkpoint_every": 0, "runs": str(folder),
        "train": f"{folder}/train.jsonl", "heldout": [f"{folder}/heldout.jsonl"],
        "judge": f"{folder}/judge.py",
    }  # fmt: skip
    words = f"--plain --pair {pair[0]},{pair[1]} --steps {steps} --placement {placement}"
    code, printed = program([*words.split(), "--name", name, *set_words(settings)])
    if code:
        return {"exit": code, "printed": printed[-5:]}, False

    text = (folder / name / "metrics.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    figures = {"peak": round(max(line["memory/peak_bytes"] for line in lines) / GIB, 1)}
    figures["gap_mean"] = round(max(line["logprob_gap_mean"] for line in lines), 4)
    for line in lines:
        times = {key[5:]: round(line[key], 2) for key in line if key.endswith("_s")}
        figures[f"{line['policy']} {line['step']}"] = times
    shutil.rmtree(folder / name)  # a checkpoint of 10 GB

    figures["said"] = [line for line in printed if "Placement" in line or "slower than" in line]
    figures["skipped"] = sum(line["update_skipped"] for line in lines)
    recorded = not any("slower than" in line for line in printed)
    return figures, recorded and not figures["skipped"] and figures["gap_mean"] < LARGEST_MEAN_GAP


def real(scale: Scale) -> tuple[dict, bool]:
    """Ten steps of the real pair, where its weights and problems are."""
    pair, why = choose_pair()
    if pair != "qwen-smol" or not scale.cuda:
        return {"not here": why}, True
    folder = Path(os.environ["SESSION"], "runs")
    shutil.rmtree(folder / "real", ignore_errors=True)
    words = f"--plain --pair {pair} --steps 10 --name real".split()
    code, lines = program([*words, *set_words({"runs": str(folder)})])
    return {"first": lines[:4], "last": lines[-4:]}, code == 0


def tasks() -> dict[str, Part]:
    """The parts in their order, cheap and telling ones first."""
    made: dict[str, Part] = {"card": card, "tokens": tokens, "padding": padding}
    made |= {"attention": attention, "token": token, "recordings": recordings}
    for name in SHAPES:
        made[f"decode-{name}"] = lambda scale, name=name: decode(scale, name)
        made[f"memory-{name}"] = lambda scale, name=name: memory(scale, name)
        made[f"update-{name}"] = lambda scale, name=name: update(scale, name)
    made |= {"ragged": ragged, "swapping": swapping, "failing": failing}
    for placement in ("resident", "swap", "parallel"):
        made[f"whole-{placement}"] = lambda scale, placement=placement: whole(scale, placement)
    made |= {"runs": runs, "modes": modes, "out-of-memory": out_of_memory, "twice": twice}
    for name in SHAPES:
        made[f"memory-{name}-checkpointing"] = lambda scale, name=name: memory(
            scale, name, micro_batch=2 * scale.micro_batch, checkpointing=True
        )
    return made | {"real": real}


# ------------------------------------------------------------------------------ the session


def read(out: Path) -> dict[str, dict]:
    """What was found so far, by part."""
    return json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}


def do(name: str, scale: Scale, out: Path) -> None:
    """One part, into the file; an error is a verdict, too."""
    files = out.with_suffix(".files")
    files.mkdir(parents=True, exist_ok=True)
    os.environ["SESSION"] = str(files)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products want it
    started = time.perf_counter()
    try:
        figures, good = tasks()[name](scale)
    except Exception as error:  # whatever a GPU may say
        figures, good = {"error": f"{type(error).__name__}: {str(error)[:300]}"}, False
    seconds = round(time.perf_counter() - started, 1)
    found = {"good": bool(good), "seconds": seconds, "predicted": PREDICTED.get(name, "")}
    everything = read(out) | {name: found | {"figures": figures}}
    out.write_text(json.dumps(everything, indent=1), encoding="utf-8")


def verdict(name: str, found: dict | None) -> str:
    """A part's line."""
    if found is None:
        return f"not made  {name}"
    word = "good" if found["good"] else "LOOK"
    predicted = f" (predicted: {found['predicted']})" if found["predicted"] else ""
    return f"{word}  {name}, {found['seconds']} s{predicted}: {json.dumps(found['figures'])}"


def main(arguments: list[str] | None = None) -> int:
    """All parts that are missing, each in a process, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "results" / "gpu.json")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="then it stops")
    parser.add_argument("--part", help="this one alone, in this process")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no CUDA device; this session measures one.", file=sys.stderr)
        return 2
    if given.part:
        logging.basicConfig(level=logging.WARNING)
        claim_process()
        do(given.part, Scale(), given.out)
        return 0

    end = time.monotonic() + 60 * given.minutes - 10
    for name in tasks():
        if name not in read(given.out) and end - time.monotonic() > 20:
            command = [sys.executable, __file__, "--out", str(given.out), "--part", name]
            part = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
            try:
                part.wait(timeout=end - time.monotonic())
            except subprocess.TimeoutExpired:
                os.killpg(part.pid, signal.SIGKILL)  # with the programs that it started
                part.wait()
        print(verdict(name, read(given.out).get(name)), flush=True)

    found = read(given.out)
    if len(found) < len(tasks()):
        print("The time is up; the same command goes on.")
        return 1
    shutil.rmtree(given.out.with_suffix(".files"), ignore_errors=True)
    return 0 if all(part["good"] for part in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
