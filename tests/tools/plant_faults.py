"""Plants one-line faults in the program, one at a time, and sees whether the tests notice.

    python tests/tools/plant_faults.py            # all; about twenty minutes on one core
    python tests/tools/plant_faults.py sgt graft  # those whose file or text holds one of the words

It works on a copy, where the tests must pass without a fault first. It prints a line for each fault
and exits with 1 if a fault was not caught, or if its line is no longer found. A person who changes
such a line changes it here as well.
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
RESUME = ["tests/end_to_end/test_main.py::"
          "test_a_stopped_and_resumed_run_equals_an_uninterrupted_one"]  # fmt: skip
LOST = "tests/end_to_end/test_nothing_lost.py::"
MAIN = "tests/end_to_end/test_main.py::"
EVALUATION = ["tests/test_evaluation.py"]
COMPARE = ["tests/test_compare.py"]
CLASSROOM = ["tests/test_classroom.py"]
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
    ("objectives", ").minimum(clipped", ").maximum(clipped", OBJECTIVES),
    ("objectives", "clipped = clip(ratio, 1 - clip_low, 1 + clip_high)",
     "clipped = clip(ratio, 1 - clip_high, 1 + clip_low)", OBJECTIVES),
    ("objectives", "ratio.detach().clamp(low, high).where(outside, ratio)",
     "ratio.clamp(low, high).detach()", OBJECTIVES),
    ("objectives", "log_ratio.sum(dim=1, keepdim=True) / lengths", "log_ratio.sum(dim=1, keepdim=True)",
     OBJECTIVES),
    ("modes/hacpo", "clipped.detach() ** self.alpha", "clipped ** self.alpha",
     ["tests/test_second_implementations.py", "tests/test_peer_modes.py"]),
    ("modes/hacpo", "+ updates_done * self.delta_step", "- updates_done * self.delta_step",
     OBJECTIVES),
    ("objectives", "scatter_add(1, chunk_of, log_ratio)", "scatter(1, chunk_of, log_ratio)",
     OBJECTIVES),
    ("objectives", "difference = ref_logprobs - logprobs", "difference = logprobs - ref_logprobs",
     OBJECTIVES),
    ("objectives", "mask / lengths / sequences", "mask / lengths", OBJECTIVES),
    ("objectives", "completion_mask.float() / tokens", "completion_mask.float() / sequences", OBJECTIVES),
    ("objectives", "chunk_log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)", "chunk_log_ratio", OBJECTIVES),
    ("logprobs", "before[0] = last", "before[0] = start - 1", POLICY),
    ("logprobs", "len(prompt) + torch.arange(len(completion))", "start + torch.arange(len(completion))",
     POLICY),
    ("logprobs", "(key == contexts[:, :, None])", "(key >= 0)", POLICY),
    ("logprobs", "mask[number, : len(completion)] = True", "mask[number, : len(completion) - 1] = True",
     POLICY),
    ("logprobs", "height * widest > most", "height > 1 and widest > most", POLICY),
    ("logprobs", "(size + 7) // 8 * 8", "size", POLICY),
    ("rollout", "keys.to(values.dtype)", "keys", ["tests/test_rollout.py"]),
    ("rollout", ".clamp(max=vocabulary - 1)", "", ["tests/test_rollout.py"]),
    ("models/cuda_graph", "bias.index_fill_(3, fixed.place, 0)", "pass", GRAPH),
    ("models/cuda_graph", "positions.add_(1)", "pass", GRAPH),
    ("models/cuda_graph", "lengths.add_(~finished)", "lengths.add_(1)", GRAPH),
    ("models/cuda_graph", "(seq + most + 7) // 8 * 8", "(seq + most)", GRAPH),
    ("learning", "on_policy = _is_on_policy(policy, batch[0])", "on_policy = not batch[0].source", POLICY),
    ("learning", "on_policy = _is_on_policy(policy, batch[0])", "on_policy = False", POLICY),
    ("policy", "rollout.version = self.version", "rollout.version = 0", POLICY),
    ("policy", "self.version += 1", "self.version += 2", POLICY),
    ("learning", "if policy.mixed_precision:\n        # the first", "if False:\n        # the first", POLICY),
    ("learning", "elif norm > 0:", "else:", POLICY),
    ("learning", "minibatch, stats.updates)", "minibatch, 0)", POLICY),
    ("learning", "objective = batch[0].objective or policy.objective\n    coefficients",
     "objective = policy.objective\n    coefficients", POLICY),
    ("learning", "policy_samples = [sample for sample in samples if sample.loss == \"policy\"]",
     "policy_samples = [s for s in samples if s.loss == \"policy\" and s.needs_forward]", POLICY),
    ("learning", "-(logprobs * weights * coefficients)", "(logprobs * weights * coefficients)", POLICY),
    ("alignment", "if end == 0 or end not", "if end not",
     ["tests/test_alignment.py"]),
    ("exchange", "receiver.eos_id if record.finished else None", "receiver.eos_id", MODES),
    ("alignment", "len(token) / size if size", "1 / len(tokens) if size",
     ["tests/test_alignment.py"]),
    ("alignment", "(step[\"replacement\"], \" \")", "(\"▁\", \" \")",
     ["tests/test_alignment.py"]),
    ("modes/own", "behavior_logprobs=rollout.logprobs,", "behavior_logprobs=rollout.logprobs[::-1],",
     MODES),
    ("modes/sgt", "group.outcome == \"all_fail\":", "group.outcome != \"all_pass\":", MODES),
    ("team", "for group in self.groups if group.outcome == \"all_fail\"", "for group in self.groups",
     ["tests/test_metrics.py"]),
    ("modes/sgt", "rng.choice(usable)", "usable[0]", MODES),
    ("modes/xgrpo", "peer.mean for peer", "peer.std for peer", MODES),
    ("modes/peers", "samples += peers_samples", "samples[:0] = peers_samples", MODES),
    ("modes/peers", "spread.append(record.end_logprob)", "spread.append(0.0)", MODES),
    ("modes/naive", "sample.behavior_logprobs = logprobs", "sample.behavior_logprobs = logprobs[1:]",
     MODES),
    ("modes/hacpo", "capability[record.source], capability[receiver.name]",
     "capability[receiver.name], capability[record.source]", MODES),
    ("modes/hacpo", "deque(maxlen=self.window)", "deque(maxlen=1)", MODES),
    ("modes/graft", "fmean(own_logprobs) - fmean(source_logprobs(received.record))",
     "fmean(source_logprobs(received.record)) - fmean(own_logprobs)", MODES),
    ("modes/graft", "0 < solved < len(records)", "0 < solved", MODES),
    ("modes/graft", "batch.samples += grafted", "batch.samples[:0] = grafted", MODES),
    ("exchange", "record.source == receiver or", "record.source == \"\" or", ["tests/test_exchange.py"]),
    ("objectives", "    if objective.surrogate:", "    if not objective:", ["tests/test_second_implementations.py"]),
    ("learning", "weights * chunk_weight * coefficients", "weights * coefficients",
     ["tests/test_second_implementations.py"]),
    ("run/load_team", "name: make_mode(config.mode, config.settings) for name in names",
     "n: m for m in [make_mode(config.mode, config.settings)] for n in names", LEAK),
    ("records", "not LEAST_LOGPROB <= logprob <= 0", "logprob > 0", RECORDS),
    ("records", "claimed_reward != correct", "claimed_reward < correct", RECORDS),
    ("modes/mode", "self.received if received.token_ids]", "self.received]", MODES),
    ("settings/read", "pair_settings(\"tiny\" if pair is None else pair)", "pair_settings(\"tiny\")", SETTINGS),
    ("settings/read", "sorted(_named(settings), key=", "list(_named(settings)) or sorted([], key=", SETTINGS),
    ("settings/read", "of_modes.get(mode, {}) | setting", "setting", SETTINGS),
    ("parsing", "not value >= rule[\"least\"]", "value < rule[\"least\"]", SETTINGS),
    ("decoder", "torch.cat([-second, first], dim)", "torch.cat([second, -first], dim)", DECODER),
    ("decoder", "silu(gate) * up", "silu(up) * gate", DECODER),
    ("decoder", "seen = scaled_dot_product_attention(query, keys, values, attn_mask=bias)",
     "seen = scaled_dot_product_attention(query, keys, values)", DECODER),
    ("run/intervals", "T_95[len(values) - 3] if", "T_95[len(values) - 2] if", ["tests/test_intervals.py"]),
    ("run/intervals", "count * (total - count) / total", "count * (total - count)", ["tests/test_intervals.py"]),
    ("models/lora", "sorted(learnt & {*loaded.missing_keys})", "[]", ["tests/test_lora.py"]),
    ("models/lora", "lora_dropout = 0.0", "lora_alpha *= 1", ["tests/test_lora.py"]),
    ("models/memory_estimate", "max(size.moves + size.gradients for", "max(size.gradients for", ["tests/test_memory_estimate.py"]),
    ("run/evaluation", "SEED_LABELS.get(split, split), start)", "split, start)",
     ["-m", "slow", "tests/test_results.py::test_the_scores_before_training_of_a_kept_run_are_sampled_again"]),
    ("run/directory", "if line not in present:", "if not line:",
     ["tests/end_to_end/test_nothing_lost.py::test_a_damaged_checkpoint_gets_a_sentence_that_names_the_file"]),
    ("run/directory", "return complete(settings)", "return complete(settings | {\"seed\": 0})",
     RESUME),
    ("run/directory", "policy.version = state[\"policies\"][policy.name][\"version\"]",
     "policy.version = state[\"step\"]", RESUME),
    ("run/directory", "for name in LOGS:\n        if", "for name in LOGS[:1]:\n        if", RESUME),
    ("run/directory", "in checkpoints(run)[:-KEEP]", "in checkpoints(run)[KEEP:]",
     [f"{LOST}test_a_full_disk_ends_the_run_with_a_sentence_and_keeps_the_last_checkpoint"]),
    ("run/run", "self.team.modes[policy.name].state()", "self.team.mode.state()", LEAK),
    ("run/directory", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB",
     [f"{LOST}test_a_run_that_somebody_writes_is_not_resumed_beside_it"]),
    ("run/evaluation", "fmean(scores[metric] for scores in skills.values())",
     "sum(s[metric] * s[\"problems\"] for s in skills.values()) / len(problems)", EVALUATION),
    ("run/evaluation", "policy.rollout(batch, generator, samples)", "policy.rollout(batch, generator)",
     EVALUATION),
    ("run/liars", "policy, [lying_group], step)", "policy, [group], step)", ["tests/test_liars.py"]),
    ("run/load_team", "trust=config.trust", "trust=RunConfig.trust",
     [f"{MAIN}test_with_verify_liars_change_nothing_and_with_claim_they_do"]),
    ("run/metrics", "statistics.fmean(statistics.pstdev(row) for row in rewards)",
     "statistics.pstdev(reward for row in rewards for reward in row)", ["tests/test_metrics.py"]),
    ("run/intervals", "math.hypot(*widths) / len(widths)",
     "math.hypot(*widths) / math.sqrt(len(widths))", ["tests/test_intervals.py"]),
    ("run/summary", "1 - 0.05 / 2 / candidates", "1 - 0.05 / 2", ["tests/test_summary.py"]),
    ("run/launch", "min(reasons) if reasons else max(", "max(reasons) if [] else max(",
     ["tests/test_launch.py"]),
    ("lab/compare_view", "run.overall(split) - of_two[run.seed]",
     "run.overall(split) - of_two[min(of_two)]", COMPARE),
    ("lab/compare_view", "if number >= VISITS and knows(rate)", "if knows(rate)", COMPARE),
    ("lab/compare", "max(slowest.get(line[\"step\"], 0.0), line[\"time/step_s\"])",
     "slowest.get(line[\"step\"], 0.0) + line[\"time/step_s\"]", COMPARE),
    ("lab/bandit", "max(square - length**2, 0.0)", "max(square, 0.0)", ["tests/test_bandit.py"]),
    ("lab/report", "later[\"step\"] > rescue[\"step\"]", "later[\"step\"] >= rescue[\"step\"]",
     ["tests/test_report.py"]),
    ("classroom/checking", "\"MRL_SEED\": str(seed)", "\"MRL_SEED\": \"0\"", CLASSROOM),
    ("classroom/checking", "(grade.student, grade.handed_in)", "(grade.student, -grade.handed_in)",
     CLASSROOM),
    ("classroom/test_liar", "(suffices or len(calls) == budget)", "True",
     ["tests/test_classroom.py::test_wrong_solutions_lose_points_and_are_shown_why[liar]"]),
    ("verifier/verifier", "if verdict is Verdict.WRONG and not finished:",
     "if not finished:", ["tests/test_judge.py"]),
    ("verifier/verifier", "if used_much or seconds > self.timeout_s / 2:", "if False:",
     ["tests/test_verifier.py"]),
    ("settings/read", "paths = [config.train, *config.heldout, config.judge]",
     "paths = [config.train, config.judge]",
     [f"{LOST}test_a_run_does_not_go_on_with_other_problems"]),
    ("settings/read", "mode = mode_type(**own)", "mode = mode_type()", SETTINGS),
    ("cli/command_line", "config.eval_samples if samples is None else samples", "config.eval_samples",
     [f"{MAIN}test_evaluate_shows_before_and_after"]),
    ("cli/command_line", "\"seed\": seed,", "", [f"{MAIN}test_a_short_run_writes_and_says_everything"]),
    ("cli/carry_out", "raise typer.Exit(130)", "raise typer.Exit(0)", RESUME),
]  # fmt: skip


def main() -> int:
    """Plant, test, print."""
    words = sys.argv[1:]
    faults = FAULTS
    if words:
        faults = [f for f in FAULTS if any(word in f"{f[0]} {f[1]}" for word in words)]
    lost = [fault for fault in faults if text_of(fault[0]).count(fault[1]) != 1]
    for module, old, *_ in lost:
        print(f"NOT FOUND once: {module}: {' '.join(old.split())}", flush=True)
    faults = [fault for fault in faults if fault not in lost]
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
            path.write_text(text.replace(old, new))
            caught = subprocess.run(command, cwd=copy, capture_output=True).returncode == 1
            path.write_text(text)
            missed += [] if caught else [(module, old)]
            result = "caught" if caught else "NOT CAUGHT"
            print(f"{number}/{len(faults)} {result}: {module}: {' '.join(new.split())}", flush=True)
    print(f"{len(faults) - len(missed)} of {len(faults)} faults were caught")
    if lost:
        print(f"{len(lost)} more were not planted, because their lines are no longer found")
    return int(bool(missed or lost))


def text_of(module):
    """The code of a module of mrl/, or nothing if the file is no longer there."""
    path = ROOT / "mrl" / f"{module}.py"
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
