"""Plants one-line faults in the core, one at a time, and sees whether the tests notice.

    python tests/tools/plant_faults.py            # all; about ten minutes on one core
    python tests/tools/plant_faults.py sgt graft  # those whose file or text holds one of the words

Works on a copy, where the tests must pass without a fault first; prints a line a fault and exits
with 1 if one was not caught.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OBJECTIVES = ["tests/test_objectives.py", "tests/test_learning.py"]
PYTEST = ["-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
GRAPH = ["tests/test_cuda_graph.py"]
MODES = ["tests/test_modes.py", "tests/test_peer_modes.py"]
POLICY = ["tests/test_policy.py", "tests/test_logprobs.py", "tests/test_learning.py"]
LEAK = ["tests/end_to_end/test_trouble.py::"
        "test_a_mode_that_keeps_groups_has_none_of_another_policy"]  # fmt: skip
RECORDS = ["tests/test_records.py", "tests/test_exchange.py"]
SETTINGS = ["tests/test_config.py"]
DECODER = ["tests/test_decoder.py"]
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
    ("advantages", "(1 - peer_share) * own_mean - peer_share", "peer_share * own_mean - (1 - peer_share)",
     ["tests/test_advantages.py"]),
    ("advantages", "baseline = (capability_ratio * rewards).mean()", "baseline = rewards.mean()",
     ["tests/test_advantages.py"]),
    ("advantages", "(rewards - baseline) / (rewards", "(capability_ratio * rewards - baseline) / (rewards",
     ["tests/test_advantages.py"]),
    ("objectives", "return -torch.minimum(", "return -torch.maximum(", OBJECTIVES),
    ("objectives", "clipped = clip(ratio, 1 - clip_low, 1 + clip_high)",
     "clipped = clip(ratio, 1 - clip_high, 1 + clip_low)", OBJECTIVES),
    ("objectives", "torch.where(outside, ratio.detach().clamp(low, high), ratio)",
     "ratio.clamp(low, high).detach()", OBJECTIVES),
    ("objectives", "log_ratio.sum(dim=1, keepdim=True) / lengths", "log_ratio.sum(dim=1, keepdim=True)",
     OBJECTIVES),
    ("objectives", "clipped.detach() ** objective", "clipped ** objective", OBJECTIVES),
    ("objectives", "+ updates_done * objective.clip_low_step", "- updates_done * objective.clip_low_step",
     OBJECTIVES),
    ("objectives", "scatter_add(1, chunk_of, log_ratio)", "scatter(1, chunk_of, log_ratio)",
     OBJECTIVES),
    ("objectives", "difference = ref_logprobs - logprobs", "difference = logprobs - ref_logprobs",
     OBJECTIVES),
    ("objectives", "mask / lengths / sequences", "mask / lengths", OBJECTIVES),
    ("objectives", "completion_mask.float() / tokens", "completion_mask.float() / sequences", OBJECTIVES),
    ("objectives", "chunk_log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)", "chunk_log_ratio", OBJECTIVES),
    ("logprobs", "before[0] = len(prompt) - 1", "before[0] = start - 1", POLICY),
    ("logprobs", "len(prompt) + torch.arange(len(completion))", "start + torch.arange(len(completion))",
     POLICY),
    ("logprobs", "(key == 0) | (key == query)", "(key >= 0)", POLICY),
    ("logprobs", "mask[number, : len(completion)] = True", "mask[number, : len(completion) - 1] = True",
     POLICY),
    ("logprobs", "height * widest > most", "height > 1 and widest > most", POLICY),
    ("logprobs", "(size + 7) // 8 * 8", "size", POLICY),
    ("rollout", "keys.to(values.dtype)", "keys", ["tests/test_rollout.py"]),
    ("rollout", "drawn.clamp(max=logprobs.shape[-1] - 1)", "drawn", ["tests/test_rollout.py"]),
    ("models/cuda_graph", "bias.index_fill_(3, fixed.place, 0)", "pass", GRAPH),
    ("models/cuda_graph", "positions.add_(1)", "pass", GRAPH),
    ("models/cuda_graph", "lengths.add_(~finished)", "lengths.add_(1)", GRAPH),
    ("models/cuda_graph", "(seq + most + 7) // 8 * 8", "(seq + most)", GRAPH),
    ("learning", "on_policy = _is_on_policy(policy, batch[0])", "on_policy = batch[0].behavior_logprobs is None", POLICY),
    ("learning", "on_policy = _is_on_policy(policy, batch[0])", "on_policy = False", POLICY),
    ("policy", "rollout.version = self.version", "rollout.version = 0", POLICY),
    ("policy", "self.version += 1", "self.version += 2", POLICY),
    ("learning", "for minibatch in batches[1:]:", "for minibatch in []:", POLICY),
    ("learning", "elif norm > 0:", "else:", POLICY),
    ("learning", "minibatch, stats.updates)", "minibatch, 0)", POLICY),
    ("learning", "objective = batch[0].objective or policy.objective\n    coefficients",
     "objective = policy.objective\n    coefficients", POLICY),
    ("learning", "policy_samples = [sample for sample in samples if sample.loss == \"policy\"]",
     "policy_samples = [s for s in samples if s.loss == \"policy\" and s.needs_forward]", POLICY),
    ("learning", "-(logprobs * weights * coefficients)", "(logprobs * weights * coefficients)", POLICY),
    ("alignment", "if end == 0 or end not", "if end not",
     ["tests/test_alignment.py"]),
    ("modes/peers", "if record.finished:  # as an id", "if True:  # as an id", MODES),
    ("alignment", "len(token) / size if size", "1 / len(tokens) if size",
     ["tests/test_alignment.py"]),
    ("alignment", "(step[\"replacement\"], \" \")", "(\"▁\", \" \")",
     ["tests/test_alignment.py"]),
    ("modes/solo", "sampled_logprobs=rollout.logprobs,", "sampled_logprobs=rollout.logprobs[::-1],",
     MODES),
    ("modes/sgt", "group.outcome == \"all_fail\":", "group.outcome != \"all_pass\":", MODES),
    ("team", "for group in self.groups if group.outcome == \"all_fail\"", "for group in self.groups",
     ["tests/test_metrics.py"]),
    ("modes/sgt", "rng.choice(candidates)", "candidates[0]", MODES),
    ("modes/xgrpo", "peer.mean for peer", "peer.std for peer", MODES),
    ("modes/peers", "samples += peers_samples", "samples[:0] = peers_samples", MODES),
    ("modes/peers", "spread.append(record.end_logprob)", "spread.append(0.0)", MODES),
    ("modes/naive", "sample.behavior_logprobs = old_logprobs", "sample.behavior_logprobs = old_logprobs[1:]",
     MODES),
    ("modes/hacpo", "capability[record.source], capability[receiver.name]",
     "capability[receiver.name], capability[record.source]", MODES),
    ("modes/hacpo", "deque(maxlen=self.window)", "deque(maxlen=1)", MODES),
    ("modes/graft", "fmean(old_logprobs) - fmean(source_logprobs(record))",
     "fmean(source_logprobs(record)) - fmean(old_logprobs)", MODES),
    ("modes/graft", "0 < solved < len(records)", "0 < solved", MODES),
    ("modes/graft", "batch.samples += grafted", "batch.samples[:0] = grafted", MODES),
    ("exchange", "record.source == receiver or", "record.source == \"\" or", ["tests/test_exchange.py"]),
    ("objectives", "if objective.ratio_power is None:  # PPO's", "if objective:  # PPO's", ["tests/test_second_implementations.py"]),
    ("learning", "weights * chunk_weight * coefficients", "weights * coefficients",
     ["tests/test_second_implementations.py"]),
    ("run/load_team", "name: make_mode(config.mode, config.settings) for name in names",
     "n: m for m in [make_mode(config.mode, config.settings)] for n in names", LEAK),
    ("records", "not LEAST_LOGPROB <= logprob <= 0", "logprob > 0", RECORDS),
    ("records", "claimed_reward != correct", "claimed_reward < correct", RECORDS),
    ("modes/sgt", "continue  # another solution may fit", "return []", MODES),
    ("settings/settings", "pair_settings(\"tiny\" if pair is None else pair)", "pair_settings(\"tiny\")", SETTINGS),
    ("settings/settings", "sorted(_named(settings), key=", "list(_named(settings)) or sorted([], key=", SETTINGS),
    ("settings/settings", "of_modes.get(mode, {}) | setting", "setting", SETTINGS),
    ("parsing", "not value >= rule[\"least\"]", "value < rule[\"least\"]", SETTINGS),
    ("decoder", "torch.cat([-second, first], dim=-1)", "torch.cat([second, -first], dim=-1)", DECODER),
    ("decoder", "silu(gate) * up", "silu(up) * gate", DECODER),
    ("decoder", "seen = scaled_dot_product_attention(query, keys, values, attn_mask=bias)",
     "seen = scaled_dot_product_attention(query, keys, values)", DECODER),
    ("run/intervals", "T_95[len(values) - 3] if", "T_95[len(values) - 2] if", ["tests/test_intervals.py"]),
    ("run/intervals", "count * (total - count) / total", "count * (total - count)", ["tests/test_intervals.py"]),
    ("models/lora", "factor = scale / SCALE if", "factor = 1.0 if", ["tests/test_lora.py"]),
    ("models/memory", "max(e.moves + e.turn for", "max(e.turn for", ["tests/test_memory.py"]),
    ("run/evaluation", "SEED_LABELS.get(split, split), start)", "split, start)",
     ["-m", "slow", "tests/test_results.py::test_the_scores_before_training_of_a_kept_run_are_sampled_again"]),
    ("run/directory", "if line not in present:", "if not line:",
     ["tests/end_to_end/test_nothing_lost.py::test_a_damaged_checkpoint_gets_a_sentence_that_names_the_file"]),
    ("lab/leaderboard", "spot in blind_spots)", "spot in blind_spots[:1])", ["tests/test_compare.py"]),
]  # fmt: skip


def main() -> int:
    """Plant, test, print."""
    words = sys.argv[1:]
    faults = FAULTS
    if words:
        faults = [f for f in FAULTS if any(word in f"{f[0]} {f[1]}" for word in words)]
    missed, sound = [], set()  # sound: tests that passed on the copy as it is
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "runs", ".venv*"))
        for number, (module, old, new, tests) in enumerate(faults, start=1):
            command = [sys.executable, *PYTEST, *tests]
            if "-m" not in tests and any("::" in test for test in tests):  # it may be a slow one
                command += ["-m", "slow or not slow"]
            if str(tests) not in sound and subprocess.run(command, cwd=copy).returncode:
                raise SystemExit(f"{' '.join(tests)}: fail without any fault")
            sound.add(str(tests))
            path = copy / "mrl" / f"{module}.py"
            text = path.read_text()
            if text.count(old) != 1:
                raise SystemExit(
                    f"{module}: {old!r} stands there {text.count(old)} times, not once"
                )
            path.write_text(text.replace(old, new))
            caught = subprocess.run(command, cwd=copy, capture_output=True).returncode == 1
            path.write_text(text)
            missed += [] if caught else [(module, old)]
            result = "caught" if caught else "NOT CAUGHT"
            print(f"{number}/{len(faults)} {result}: {module}: {' '.join(new.split())}", flush=True)
    print(f"{len(faults) - len(missed)} of {len(faults)} faults were caught")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
