"""What only a GPU can show, as one command of at most 25 minutes: a table with a verdict a row.

    python tests/bench/gpu_session.py               # goes on where it was stopped
    python tests/bench/gpu_session.py --out FOLDER  # default: data/results/gpu

Each part is a process of its own, so that memory is its own and an error ends no other; what it
found lies in `FOLDER/part.json`, and a part that lies there is not made again. Random weights at
the true shapes of Qwen2.5-0.5B and SmolLM2-360M; the real pair only where it can be loaded. Exits
with 0 if every verdict is good, with 1 if not, with 2 if there is no CUDA device.
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from mrl import rollout
from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.learning import learn
from mrl.policy import Policy
from mrl.runtime import cuda_graph
from mrl.runtime.loading import _enable_checkpointing, load_policy, load_tokenizer
from mrl.runtime.memory import estimate
from mrl.runtime.pairs import choose_pair
from mrl.runtime.problems import load_problems
from mrl.samples import TrainingSample

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 25
GIB = 2**30
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
    return policy


def samples_of(scale: Scale) -> list[TrainingSample]:
    """Groups that all teach, of full length."""
    return [
        TrainingSample([5] * (scale.prompt - 2) + [6 + number % 50, 7 + number // 50],
                       [8 + (i + t) % 40 for t in range(scale.completion)],
                       advantage=(-1.0) ** i, behavior_logprobs=[-4.0] * scale.completion)
        for number in range(scale.prompts) for i in range(scale.group)
    ]  # fmt: skip


def wait(scale: Scale) -> float:
    """The time when the device has done its work, seconds."""
    if scale.cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def sample(policy: Policy, scale: Scale, tokens: int = 0) -> rollout.Completions:
    """Completions of prompts of several lengths."""
    prompts = [[5] * (scale.prompt - number % 7) for number in range(scale.prompts)]
    with policy.precision():
        return rollout.sample_completions(
            policy.model, prompts, scale.group, max_new_tokens=tokens or scale.completion,
            temperature=1.0, end_ids=torch.tensor(policy.end_ids, device=scale.device),
            suppressed=policy.suppressed, generator=torch.Generator().manual_seed(0),
            decode=policy.graph_decode,
        )  # fmt: skip


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


def program(folder: Path, command: str, *settings: str) -> tuple[int, list[str]]:
    """A run of the whole program; its exit code and what it printed."""
    words = [*command.split(), *(word for s in settings for word in ("--set", s))]
    done = subprocess.run(
        [sys.executable, str(ROOT / "mini_mrl.py"), "--plain", *words, "--set", f"runs={folder}"],
        capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def runs(scale: Scale) -> tuple[dict, bool]:
    """The program on the device, resident and swap: where do their metrics first differ?"""
    folder, lines = Path(os.environ["SESSION"], "runs"), []
    for name in ("resident", "swap"):
        shutil.rmtree(folder / name, ignore_errors=True)
        code, printed = program(
            folder, f"--pair tiny --steps {scale.steps} --placement {name} --name {name}",
            f"device={scale.device}", f"prompts_per_step={scale.prompts}", "eval_samples=1",
            f"group_size={scale.group}", f'heldout=["{DATA}/words/newtemplates.jsonl"]',
        )  # fmt: skip
        if code:
            return {name: printed[-5:]}, False
        text = (folder / name / "metrics.jsonl").read_text("utf-8")
        made = [json.loads(line) for line in text.splitlines()]
        lines.append([{k: v for k, v in x.items() if not k.startswith("time/")} for x in made])
    differing = [a["step"] for a, b in zip(*lines, strict=True) if a != b]
    solved = [round(sum(line["reward"] for line in made[-4:]) / 4, 3) for made in lines]
    figures = {"first_differing_step": min(differing, default=None), "solve_rates": solved}
    return figures, abs(solved[0] - solved[1]) < 0.2


def memory(scale: Scale, name: str = "qwen2.5", **settings) -> tuple[dict, bool]:
    """The peak of a learning step, with the optimizer's state in place, against the estimate."""
    policy, samples = policy_of(scale, name, **settings), samples_of(scale)
    config = RunConfig([policy.config], prompts_per_step=scale.prompts, eval_samples=1)
    expected = estimate(policy, config, scale.prompt).peak
    notes = learn(policy, samples).notes
    if scale.cuda:
        torch.cuda.reset_peak_memory_stats()
    notes += learn(policy, samples).notes
    peak = torch.cuda.max_memory_allocated() if scale.cuda else expected
    figures = {"peak": round(peak / GIB, 2), "estimate": round(expected / GIB, 2), "notes": notes}
    return figures, not notes and 0.9 < expected / peak < 1.1


def decode(scale: Scale, name: str = "qwen2.5") -> tuple[dict, bool]:
    """Milliseconds a token, plain and recorded, and what the device does in them."""
    policy, figures, written = policy_of(scale, name), {}, []
    for way in ("plain", "recorded"):
        with plain_loop() if way == "plain" else nullcontext():
            sample(policy, scale, min(20, scale.completion))  # kernels are chosen, memory is there
            started = wait(scale)
            written.append(sample(policy, scale))
            figures[f"{way}_ms"] = round(1e3 * (wait(scale) - started) / scale.completion, 2)
    same = (written[0].token_ids == written[1].token_ids).float().cumprod(dim=1).mean()
    with plain_loop(), profile(activities=watched(scale)) as seen:
        sample(policy, scale, 4)
    events = [event for event in seen.events() if "cuda" in str(event.device_type).lower()]
    figures |= {
        "same_tokens": round(float(same), 3),
        "kernels_a_token": len(events) / 4,
        "attention": sorted(
            {e.name[:60] for e in events if "mha" in e.name or "attention" in e.name}
        ),
    }
    faster = figures["recorded_ms"] < 0.7 * figures["plain_ms"]
    return figures, not scale.cuda or (faster and float(same) > 0.5)


def update(scale: Scale, name: str = "qwen2.5") -> tuple[dict, bool]:
    """Seconds of a learning step by micro-batch, and which kernels they go to."""
    figures, notes, samples = {}, [], samples_of(scale)
    policy = policy_of(scale, name)
    learn(policy, samples[: 2 * scale.group])
    for size in (scale.micro_batch // 2, scale.micro_batch, 2 * scale.micro_batch):
        policy.micro_batch = size
        started = wait(scale)
        notes += learn(policy, samples).notes
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
    figures = {"notes": stats.notes, "rest": round(rest / GIB, 2), "left": round(left / GIB, 2)}
    return figures, bool(stats.notes) and stats.updates == 1 and left < 1.02 * rest


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
    made: dict[str, Part] = {"card": card, "tokens": tokens, "runs": runs}
    for name in SHAPES:
        made[f"decode {name}"] = lambda scale, name=name: decode(scale, name)
        made[f"memory {name}"] = lambda scale, name=name: memory(scale, name)
        made[f"update {name}"] = lambda scale, name=name: update(scale, name)
        made[f"memory {name} checkpointing"] = lambda scale, name=name: memory(
            scale, name, micro_batch=2 * scale.micro_batch, checkpointing=True
        )
    return made | {"out of memory": out_of_memory, "twice": twice, "real": real}


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
    rows, good = ["| part | seconds | verdict | figures |", "|---|---|---|---|"], True
    for name in tasks():
        path = out / f"{name}.json"
        if not path.exists():
            rows.append(f"| {name} | | not made | |")
            good = False
            continue
        found = json.loads(path.read_text("utf-8"))
        verdict = "good" if found["good"] else "**look**"
        rows.append(f"| {name} | {found['seconds']} | {verdict} | {json.dumps(found['figures'])} |")
        good &= found["good"]
    return "\n".join(rows) + "\n", good


def main(arguments: list[str] | None = None) -> int:
    """All parts that are missing, each in a process, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "results" / "gpu")
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
    end = time.monotonic() + 60 * MINUTES
    for name in tasks():
        if (given.out / f"{name}.json").exists() or end - time.monotonic() < 20:
            continue
        print(name, flush=True)
        command = [sys.executable, __file__, "--out", str(given.out), "--part", name]
        try:
            subprocess.run(command, timeout=end - time.monotonic())
        except subprocess.TimeoutExpired:
            print(f"{name}: the time is up; the same command goes on with it.")
    text, good = table(given.out)
    (given.out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
