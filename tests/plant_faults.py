"""Plants one-line faults in the core, one at a time, and sees whether the tests notice.

    python tests/plant_faults.py            # all; about ten minutes on one core
    python tests/plant_faults.py sgt graft  # those whose file or text holds one of the words

Works on a copy; prints a line a fault and exits with 1 if one was not caught.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OBJECTIVES = ["tests/test_objectives.py", "tests/test_learning.py"]
MODES = ["tests/test_modes.py", "tests/test_peer_modes.py"]
POLICY = ["tests/test_policy.py", "tests/test_scoring.py", "tests/test_learning.py"]
FAULTS = [  # file, what stands there, what is planted, the tests that should notice
    ("advantages", "rewards.mean(dim=1, keepdim=True)\n    # exact", "rewards.mean()\n    # exact",
     ["tests/test_advantages.py"]),
    ("advantages", "correction=0) + eps)\n\n\ndef shared", "correction=1) + eps)\n\n\ndef shared",
     ["tests/test_advantages.py"]),
    ("advantages", "centered.masked_fill(all_equal, 0.0)", "centered",
     ["tests/test_advantages.py"]),
    ("advantages", "if not scale_by_std:", "if scale_by_std:", ["tests/test_advantages.py"]),
    ("advantages", "peer_std**2 + (peer_mean", "peer_std + (peer_mean",
     ["tests/test_advantages.py"]),
    ("advantages", "(own * own_mean + peer_sum) / total", "(own_mean + peer_sum) / total",
     ["tests/test_advantages.py"]),
    ("advantages", "(1 - mix) * own_mean - mix", "mix * own_mean - (1 - mix)",
     ["tests/test_advantages.py"]),
    ("advantages", "baseline = (capability * rewards).mean()", "baseline = rewards.mean()",
     ["tests/test_advantages.py"]),
    ("advantages", "(rewards - baseline) / (rewards", "(capability * rewards - baseline) / (rewards",
     ["tests/test_advantages.py"]),
    ("objectives", "return -torch.minimum(", "return -torch.maximum(", OBJECTIVES),
    ("objectives", "ratio.clamp(1 - clip_low, 1 + clip_high)\n    return",
     "ratio.clamp(1 - clip_high, 1 + clip_low)\n    return", OBJECTIVES),
    ("objectives", "difference.sum(dim=1, keepdim=True) / lengths", "difference.sum(dim=1, keepdim=True)",
     OBJECTIVES),
    ("objectives", "clipped.detach() ** objective", "clipped ** objective", OBJECTIVES),
    ("objectives", "+ updates_done * self.clip_low_step", "- updates_done * self.clip_low_step",
     OBJECTIVES),
    ("objectives", "scatter_add(1, chunk_of, difference)", "scatter(1, chunk_of, difference)",
     OBJECTIVES),
    ("objectives", "difference = ref_logprobs - logprobs", "difference = logprobs - ref_logprobs",
     OBJECTIVES),
    ("objectives", "clamp(min=1) / sequences", "clamp(min=1)", OBJECTIVES),
    ("objectives", "return mask / tokens", "return mask / sequences", OBJECTIVES),
    ("objectives", "log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)", "log_ratio", OBJECTIVES),
    ("scoring", "before[0] = len(prompt) - 1", "before[0] = start - 1", POLICY),
    ("scoring", "len(prompt) + torch.arange(len(completion))", "start + torch.arange(len(completion))",
     POLICY),
    ("scoring", "(key == 0) | (key == query)", "(key >= 0)", POLICY),
    ("scoring", "mask[number, : len(completion)] = True", "mask[number, : len(completion) - 1] = True",
     POLICY),
    ("learning", "policy.version += 1", "policy.version += 2", POLICY),
    ("learning", "counted = [sample for sample in samples if sample.objective == \"policy\"]",
     "counted = [s for s in samples if s.objective == \"policy\" and s.can_teach]", POLICY),
    ("learning", "-(logprobs * weights * token", "(logprobs * weights * token", POLICY),
    ("alignment", "if i_byte != j_byte or i_byte == start:", "if i_byte == start:",
     ["tests/test_alignment.py"]),
    ("alignment", "+ ([end_id] if finished else [])", "+ [end_id]", MODES),
    ("alignment", "len(pieces[token]) / size if size", "1 / (last - first) if size",
     ["tests/test_alignment.py"]),
    ("modes/solo", "behavior_logprobs=rollout.logprobs,", "behavior_logprobs=rollout.logprobs[::-1],",
     MODES),
    ("modes/sgt", "group.kind != \"all_fail\" or not", "group.kind == \"all_pass\" or not", MODES),
    ("modes/sgt", "rng.choice(successes)", "successes[0]", MODES),
    ("modes/xgrpo", "figures[:, p, j] = ", "figures[:, 0, j] = ", MODES),
    ("modes/prp", "pooled.append(sample)\n            rewards", "pooled.insert(0, sample)\n            rewards",
     MODES),
    ("modes/received", "spread.append(record.end_logprob)", "spread.append(0.0)", MODES),
    ("modes/naive", "sample.behavior_logprobs = old_logprobs", "sample.behavior_logprobs = old_logprobs[1:]",
     MODES),
    ("modes/hacpo", "_bounded(capability[record.source], capability[receiver.name])",
     "_bounded(capability[receiver.name], capability[record.source])", MODES),
    ("modes/hacpo", "deque(maxlen=self.window)", "deque(maxlen=1)", MODES),
    ("modes/graft", "fmean(old_logprobs) - fmean(source_logprobs(record))",
     "fmean(source_logprobs(record)) - fmean(old_logprobs)", MODES),
    ("modes/graft", "0 < solved < len(records)", "0 < solved", MODES),
    ("modes/graft", "lesson.samples += grafted", "lesson.samples[:0] = grafted", MODES),
    ("exchange", "record.source == receiver", "record.source == \"\"", ["tests/test_exchange.py"]),
    ("objectives", "if objective.ratio_power is None:\n        return clipped_loss",
     "if objective:\n        return clipped_loss", ["tests/test_second_implementations.py"]),
    ("learning", "weights * share * token", "weights * token",
     ["tests/test_second_implementations.py"]),
]  # fmt: skip


def main() -> int:
    """Plant, test, tell."""
    words = sys.argv[1:]
    chosen = [f for f in FAULTS if not words or any(w in f"{f[0]} {f[1]}" for w in words)]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "runs", ".venv*"))
        for number, (module, old, new, tests) in enumerate(chosen, start=1):
            path = copy / "mrl" / f"{module}.py"
            text = path.read_text()
            if text.count(old) != 1:
                raise SystemExit(
                    f"{module}: {old!r} stands there {text.count(old)} times, not once"
                )
            path.write_text(text.replace(old, new))
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
            caught = subprocess.run(command, cwd=copy, capture_output=True).returncode == 1
            path.write_text(text)
            if not caught:
                missed.append((module, old))
            said = "caught" if caught else "NOT CAUGHT"
            print(f"{number}/{len(chosen)} {said}: {module}: {' '.join(new.split())}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults were caught")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
