"""Minibatches, peers' objectives, KL, diagnostics: what `learn` does beyond one plain update."""

import gc
import math
import weakref
from dataclasses import replace
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import torch

from mrl import logprobs
from mrl.config import DATA, PolicyConfig
from mrl.learning import LARGEST_GAP, LARGEST_MEAN_GAP, learn
from mrl.models import cuda_graph
from mrl.models.loading import load_policy
from mrl.modes import Experience, Received, TrainingBatch
from mrl.modes.hacpo import NarrowingBand
from mrl.objectives import OBJECTIVES
from mrl.run.metrics import outcome_metrics
from mrl.run.problems import load_problems
from mrl.samples import Group, Problem, Rollout, TrainingSample, prompt_and_completion_ids
from mrl.team import StepResult
from tests.fakes import success


def sample(policy, text, advantage, source="", **fields):
    ids = [*policy.codec.encode(text), policy.eos_id]
    fields |= {"record": success("x", text, source)} if source else {}
    made = TrainingSample(policy.prompt_ids("1+1?"), ids, advantage=advantage, **fields)
    made.behavior_logprobs = policy.logprobs_of([made.prompt_ids], [ids])[0]
    return made


def sampled(policy):
    """Two groups that the policy has just written, with advantages of both signs."""
    return samples_of(
        policy.rollout([Problem("a", "1+1?", "2")] * 2, torch.Generator().manual_seed(0))
    )


def samples_of(groups):
    return [
        TrainingSample(g.prompt_ids, r.completion_ids, advantage=(-1.0) ** n,
                       behavior_logprobs=r.logprobs, sampled_version=r.version)
        for g in groups for n, r in enumerate(g.rollouts)
    ]  # fmt: skip


def test_minibatches_are_updates_in_the_order_of_the_samples(make_policy):
    texts = ("1", "2", "3", "4", "5")
    one, two = make_policy(learning_rate=1e-3), make_policy(learning_rate=1e-3)
    samples = [sample(one, text, (-1) ** n) for n, text in enumerate(texts)]
    stats = learn(one, samples, updates=2)
    learn(two, samples[:3])
    learn(two, samples[3:])
    assert (stats.updates, one.version) == (2, 2)
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert learn(one, [sample(one, "6", 1.0)], updates=4).updates == 1
    assert learn(one, [], updates=4).updates == 0
    nine = [sample(one, "1", (-1) ** n) for n in range(9)]
    assert learn(one, nine, updates=4).updates == 3  # at most 4, of three samples each


@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed", marks=pytest.mark.slow)])
@pytest.mark.parametrize("updates", [1, 2])
def test_own_samples_that_are_kept_for_a_later_step_have_their_true_ratio(
    make_policy, dtype, updates
):
    """The version belongs to the sample: sampling again does not make older samples newer."""
    policy = make_policy(learning_rate=1e-2, max_new_tokens=10, dtype=dtype)
    kept = sampled(policy)
    learn(policy, sampled(policy))  # the weights have moved
    scored = policy.logprobs_of(*prompt_and_completion_ids(kept))
    true = math.exp(max(
        now - then
        for one, numbers in zip(kept, scored, strict=True)
        for now, then in zip(numbers, one.behavior_logprobs, strict=True)
    ))  # fmt: skip
    fresh = sampled(policy)  # a later step samples first
    policy.config.learning_rate = policy.optimizer.param_groups[0]["lr"] = 1e-30
    stats = learn(policy, [one for pair in zip(fresh, kept, strict=True) for one in pair], updates)
    assert true > 1.05
    assert stats.own.ratio_max == pytest.approx(true, abs=2e-2)
    assert stats.warnings == []


@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed", marks=pytest.mark.slow)])
def test_before_the_first_update_own_ratios_are_exactly_one(make_policy, dtype):
    """Scored log-probs differ from sampled ones by rounding: gspo's band of 4e-4 would be left."""
    policy = make_policy(dtype=dtype, objective="gspo", learning_rate=1e-2, max_new_tokens=10)
    samples = sampled(policy)
    peers = []
    for one in samples:
        less = [value - 0.5 for value in one.behavior_logprobs]
        peers.append(replace(one, record=success("a"), advantage=1.0, behavior_logprobs=less))
    stats = learn(policy, samples + peers)
    got = stats.metrics()
    assert (got["ratio/mean"], got["ratio/max"], got["clip_ratio/high_mean"]) == (1, 1, 0)
    assert stats.sample_outcomes["clipped"] == len(peers)  # their ratio is computed, as ever
    assert 0 < got["logprob_gap"] < (1e-4 if dtype == "float32" else 0.1)
    later = learn(policy, samples).metrics()  # the weights have moved
    assert later["ratio/max"] > 1.01


def test_numbers_that_a_mode_gives_an_own_sample_are_its_denominator_from_the_first_update_on(
    make_policy,
):
    """For instance an own text of an earlier step. It is the policy's own all the same."""
    policy = make_policy(learning_rate=1e-2, max_new_tokens=10)
    now, earlier = sampled(policy), sampled(policy)
    for one in earlier:
        one.behavior_logprobs = [value - math.log(2) for value in one.behavior_logprobs]
        one.sampled_version = None
    stats = learn(policy, now + earlier)
    assert stats.own.ratio_max == pytest.approx(2, abs=1e-3)
    assert stats.own.tokens == 2 * sum(len(one.completion_ids) for one in now)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed", marks=pytest.mark.slow)])
def test_a_gap_that_is_more_than_rounding_is_said_once(make_policy, monkeypatch, dtype):
    policy = make_policy(max_new_tokens=10, learning_rate=1e-2, dtype=dtype)
    for _ in range(3):  # later minibatches differ, because there the weights have moved
        stats = learn(policy, sampled(policy), updates=4)
        assert stats.warnings == []
    if dtype == "float32":
        assert stats.own.logprob_gap_max > LARGEST_GAP > stats.own.on_policy_gap_max
    assert 0 < stats.own.on_policy_gap_mean < LARGEST_MEAN_GAP / 2

    # a head that was computed right when the model was loaded, and is not any more
    right = logprobs.head_logits
    monkeypatch.setattr(logprobs, "head_logits", lambda model, hidden: 3 * right(model, hidden))
    samples = sampled(policy)
    for want in (1, 0):
        stats = learn(policy, samples[:4])
        for one in samples:
            one.sampled_version = policy.version
        assert len(stats.warnings) == want
        assert stats.own.on_policy_gap_mean > LARGEST_MEAN_GAP


@pytest.mark.slow
def test_a_decoder_with_wrong_keys_is_found_in_mixed_precision(monkeypatch, verifier):
    """Own ratios are 1 by definition, and a recording is compared with its own step alone."""
    path = DATA / "tiny" / "qwen-tiny"
    problems = load_problems(DATA / "words" / "validation.jsonl", verifier.check_answer)[::40]
    monkeypatch.setattr(cuda_graph, "_failures", [])
    monkeypatch.setattr(cuda_graph, "_compared", WeakSet())
    monkeypatch.setattr(cuda_graph, "can_record", lambda cache, device: True)
    monkeypatch.setattr(cuda_graph, "_capture", lambda step: step)
    warnings, gaps = [], []
    for factor in (1.0, 1.5):

        class Wrong(cuda_graph.FixedCache):
            def add(self, new, layer, factor=factor):
                keys, values = new.chunk(2, dim=1)
                return super().add(torch.cat([keys * factor, values], dim=1), layer)

        monkeypatch.setattr(cuda_graph, "FixedCache", Wrong)
        policy = load_policy(PolicyConfig("a", str(path), learning_rate=1e-30, dtype="mixed"))
        policy.graph_decode = cuda_graph.decode
        groups = policy.rollout(problems, torch.Generator().manual_seed(0))
        assert policy.model in cuda_graph._compared  # it is believed
        stats = learn(policy, samples_of(groups))
        warnings.append(stats.warnings)
        gaps.append(stats.own.on_policy_gap_mean)
    assert warnings[0] == []
    assert 4 * gaps[0] < LARGEST_MEAN_GAP < gaps[1]
    (sentence,) = warnings[1]
    assert sentence.startswith("a: ") and "nats" in sentence


@pytest.mark.parametrize("minibatches", [1, 4])
def test_rounding_is_no_ratio_in_any_minibatch(make_policy, minibatches):
    """With updates that move nothing every own ratio is 1, also with bfloat16's rounding."""
    policy = make_policy(dtype="mixed", objective="gspo", learning_rate=1e-30, max_new_tokens=10)
    samples = sampled(policy)
    stats = learn(policy, samples, minibatches)
    got = stats.metrics()
    assert stats.updates == minibatches
    assert (got["ratio/mean"], got["ratio/max"]) == (1, 1)
    assert stats.sample_outcomes["clipped"] == 0


def test_an_update_without_gradient_moves_nothing(make_policy):
    policy = make_policy(learning_rate=1e-2, weight_decay=0.1)
    learn(policy, [sample(policy, "1", 1.0)])  # AdamW's moments are not 0 from now on
    before = [parameter.clone() for parameter in policy.model.parameters()]
    objective = replace(OBJECTIVES["grpo"], ratio_level="sequence")
    far = sample(policy, "3", 1.0, source="b", objective=objective)
    far.behavior_logprobs = [value - 1.0 for value in far.behavior_logprobs]  # ratio e: clipped
    stats = learn(policy, [far])
    assert (stats.updates, policy.version, stats.sample_outcomes["clipped"]) == (0, 1, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_a_band_narrows_with_updates_that_were_made(make_policy):
    """HACPO's u: a minibatch without gradient is no update (arXiv 2603.02604, eq. 50)."""
    policy = make_policy(learning_rate=1e-30)
    objective = replace(OBJECTIVES["gspo"], surrogate=NarrowingBand(1, 0.2, 0.1))
    flat = [sample(policy, "1", 0.0), sample(policy, "2", 0.0)]
    peers = [sample(policy, text, 1.0, source="b", objective=objective) for text in ("3", "4")]
    for peer in peers:  # s = 0.85: within the band before any update, below it after one
        peer.behavior_logprobs = [value - math.log(0.85) for value in peer.behavior_logprobs]
    assert learn(policy, flat + peers, updates=2).sample_outcomes["taught"] == 2
    own = [sample(policy, text, 1.0) for text in ("1", "2")]
    assert learn(policy, own + peers, updates=2).sample_outcomes["clipped"] == 2


def test_losses_are_means_over_updates(make_policy):
    policy = make_policy(learning_rate=1e-30)
    texts = [sample(policy, "12", 0.0, loss="imitation") for _ in range(4)]
    one, four = (learn(policy, texts, m).metrics()["loss_nll"] for m in (1, 4))
    assert four == pytest.approx(one) != 0


@pytest.mark.parametrize(("own", "policys"), [("dapo", "grpo"), ("grpo", "dapo")])
def test_kl_is_averaged_as_the_samples_objective_averages(make_policy, own, policys):
    """Two texts of 2 and 7 tokens: means over texts and over tokens differ."""
    found = []
    for objective in (policys, own):
        policy = make_policy(kl_coef=1.0, objective=objective, learning_rate=1e-30)
        with torch.no_grad():  # away from its reference
            policy.model.get_input_embeddings().weight.mul_(1.5)
        samples = [sample(policy, text, 1.0) for text in ("1", "123456")]
        if objective == policys:
            samples = [replace(s, objective=OBJECTIVES[own]) for s in samples]
        found.append(learn(policy, samples).metrics()["kl"])
    assert found[0] == pytest.approx(found[1])
    plain = learn(policy, [replace(s, objective=OBJECTIVES[policys]) for s in samples])
    assert found[0] != pytest.approx(plain.metrics()["kl"], rel=1e-2)


def test_the_scale_of_kl_knows_nothing_of_flat_groups_and_peers(make_policy):
    """The step of plain descent, with advantages next to 0: the penalty's gradient alone."""
    found = []
    for others in (0, 3):
        policy = make_policy(kl_coef=1.0, max_grad_norm=1e9)
        policy.optimizer = torch.optim.SGD(policy.model.parameters(), lr=1.0)
        weights = policy.model.get_input_embeddings().weight
        with torch.no_grad():  # away from its reference
            weights.mul_(1.5)
        before = weights.detach().clone()
        own = [sample(policy, text, 1e-12) for text in ("1", "123456")]
        flat = [sample(policy, "7", 0.0)] * others
        peers = [sample(policy, "8", 1e-12, source="b")] * others
        kl = learn(policy, own + flat + peers).metrics()["kl"]
        found.append((kl, (weights.detach() - before).norm().item()))
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert min(found[0]) > 0


def test_ratios_in_the_metrics_are_those_of_own_samples_alone(make_policy):
    policy = make_policy()
    own = sample(policy, "1", 1.0)
    objective = replace(OBJECTIVES["grpo"], ratio_level="sequence")
    peer = sample(policy, "2", 1.0, source="b", weight=0.5, objective=objective)
    far = sample(policy, "3", 1.0, source="b", weight=0.5, objective=objective)
    far.behavior_logprobs = [value - 1.0 for value in far.behavior_logprobs]  # ratio e: clipped
    stats = learn(policy, [own, peer, far])
    got = stats.metrics()
    assert got["ratio/max"] == pytest.approx(1.0, abs=1e-4)
    assert (got["clip_ratio/low_mean"], got["clip_ratio/high_mean"]) == (0, 0)
    assert stats.sample_outcomes == {"taught": 2, "clipped": 1}
    assert "ratio/max" not in learn(policy, [peer]).metrics()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
        MemoryError(),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
    ids=lambda error: str(error)[:30],
)
def test_out_of_memory_halves_the_micro_batch_and_learns_the_same(make_policy, error):
    plain, short = make_policy(), make_policy(max_tokens_per_forward=64)
    samples = [sample(plain, "1" * n, (-1) ** n) for n in range(1, 7)]

    enough = short.score

    def scarce(prompts, completions):
        if sum(map(len, completions)) > 12:
            raise error
        return enough(prompts, completions)

    short.score = scarce
    learn(plain, samples)
    stats = learn(short, samples)
    assert stats.updates == 1
    assert [warning.startswith("qwen-tiny ") for warning in stats.warnings] == [True, True]
    assert ["32 tokens" in stats.warnings[0], "16 tokens" in stats.warnings[1]] == [True, True]
    assert stats.own.samples == 6  # the attempts that failed are not counted
    for a, b in zip(plain.model.parameters(), short.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)

    def none_at_all(*about):
        raise error

    short.score = none_at_all
    with pytest.raises(type(error)):
        learn(short, samples)

    # a sample that takes no forward pass may be longer than what fits
    again = make_policy(max_tokens_per_forward=64)
    flat = sample(again, "1" * 60, 0)
    enough, again.score = again.score, scarce
    learn(again, [*samples, flat])
    assert again.max_tokens_per_forward == 16


def test_a_bug_is_not_tried_again(make_policy):
    policy, calls = make_policy(), []

    def broken(*about):
        calls.append(1)
        raise RuntimeError("shapes do not fit")

    one, policy.score = sample(policy, "1", 1.0), broken
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        learn(policy, [one])
    assert len(calls) == 1


def test_an_attempt_that_ran_out_of_memory_leaves_nothing_behind(make_policy):
    """Nor does it wait for the garbage collector: the next attempt needs the memory."""
    policy, kept, dead = make_policy(max_tokens_per_forward=64), [], []
    samples = [sample(policy, "1" * n, (-1) ** n) for n in range(1, 5)]

    enough = policy.score

    def scarce(prompts, completions):
        dead.append(all(seen() is None for seen in kept))
        logprobs, mask = enough(prompts, completions)
        kept.extend(weakref.ref(tensor) for tensor in (logprobs, mask))
        if len(dead) < 3:
            raise torch.OutOfMemoryError("no memory")
        return logprobs, mask

    policy.score = scarce
    gc.disable()
    try:
        assert len(learn(policy, samples).warnings) == 2
    finally:
        gc.enable()
    assert dead[:3] == [True] * 3


def test_every_completion_has_one_outcome(make_policy):
    policy = make_policy()
    samples = [
        sample(policy, "1", 1.0),
        sample(policy, "2", 0.0),
        sample(policy, "3", 0.0, reward=1.0),
        sample(policy, "4", 0.0, source="b"),
        replace(sample(policy, "5", 0.0, source="b", reward=1.0), loss="imitation", weight=0.1),
        replace(sample(policy, "6", 1.0), behavior_logprobs=[-99.0] * 2),
    ]
    stats = learn(policy, samples)
    assert stats.sample_outcomes == {
        "taught": 1,
        "all_fail": 2,
        "all_pass": 1,
        "imitated": 1,
        "clipped": 1,
    }
    batch = TrainingBatch(samples)
    # the first three; the last is an own text of an earlier step, with log-probs of then
    for one in samples[:3]:
        one.rollout = Rollout(one.completion_ids, [], True)
    own = Group(Problem("x", "1+1?", "2"), [1], [one.rollout for one in samples[:3]])
    received = [Received(one.record, one.completion_ids) for one in samples[3:5]]
    left_alone = [success("x"), success("x")]  # the mode did not use these
    received += [Received(record, [1]) for record in left_alone]
    reasons = ("dropped/too_long", "thl/refused/not_utf8")
    received += [Received(success("x"), [], reason) for reason in reasons]
    got = outcome_metrics(StepResult([own], [Experience(own, received)], batch, stats))
    assert sum(got.values()) == pytest.approx(1.0)
    assert got["outcome/dropped"] == got["outcome/refused"] == pytest.approx(0.1)
    assert got["outcome/not_needed"] == pytest.approx(0.2)
    assert got["outcome/taught"] == got["outcome/imitated"] == pytest.approx(0.1)


def test_an_own_text_of_an_earlier_step_is_own_in_every_count(make_policy):
    """With the loss of an own mode that replays texts by ratio, and by imitation."""
    policy = make_policy()
    written_now = Rollout(sample(policy, "1", 0.0).completion_ids, [], True)
    own = Group(Problem("x", "1+1?", "2"), policy.prompt_ids("1+1?"), [written_now])
    earlier = sample(policy, "2", 1.0)
    imitation_samples = replace(sample(policy, "3", 0.0), loss="imitation", weight=0.1)

    samples = [sample(policy, "1", 0.0, rollout=written_now), earlier, imitation_samples]
    stats = learn(policy, samples)
    got = outcome_metrics(StepResult([own], [], TrainingBatch(samples), stats))
    assert {name: share for name, share in got.items() if share} == pytest.approx(
        {"outcome/all_fail": 1 / 3, "outcome/taught": 1 / 3, "outcome/replayed": 1 / 3}
    )
    assert stats.own.tokens == len(earlier.completion_ids)


def test_imitated_solutions_of_peers_and_of_the_policy_have_separate_means(make_policy):
    """So the number of own ones does not change how much a peer's one weighs."""
    policy = make_policy()
    peers = [replace(sample(policy, text, 0.0, "b"), loss="imitation") for text in ("1", "2")]
    own = [replace(sample(policy, text, 0.0), loss="imitation") for text in "345"]
    nll = {}
    for name, samples in (("peers", peers), ("own", own), ("both", peers + own)):
        policy = make_policy()
        nll[name] = learn(policy, samples).nll_loss
    assert nll["both"] == pytest.approx(nll["peers"] + nll["own"], rel=1e-5)


def test_the_gradient_is_cut_to_the_greatest_norm(make_policy):
    policy = make_policy(max_grad_norm=1e-3)
    policy.optimizer = torch.optim.SGD(policy.model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in policy.model.parameters()]
    stats = learn(policy, [sample(policy, "1", 1.0)])
    pairs = zip(before, policy.model.parameters(), strict=True)
    moved = sum(float((a - b).detach().square().sum()) for a, b in pairs) ** 0.5
    assert stats.grad_norm > 1e-2
    assert moved == pytest.approx(1e-3, rel=1e-2)


def test_the_gradient_of_kl_is_the_one_by_hand(make_policy):
    policy = make_policy(kl_coef=0.5, max_grad_norm=1e9)
    policy.optimizer = SimpleNamespace(step=lambda: None, zero_grad=lambda set_to_none: None)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(1.5)
    samples = [sample(policy, text, 1e-12) for text in ("1", "123456")]
    learn(policy, samples)
    got = [p.grad.clone() for p in policy.model.parameters()]
    policy.model.zero_grad()
    logprobs, mask = policy.score(*prompt_and_completion_ids(samples))
    with torch.no_grad():
        d = policy.score(*prompt_and_completion_ids(samples), policy.reference)[0]
    d = d - logprobs
    (0.5 * (((d.exp() - d - 1) * mask).sum(1) / mask.sum(1)).mean()).backward()
    for mine, parameter in zip(got, policy.model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, atol=1e-6, rtol=1e-3)


def test_the_kl_term_does_not_depend_on_a_longer_completion_that_is_imitated(make_policy):
    kl = {}
    for name, others in (("alone", []), ("both", [sample(make_policy(), "1234567", 0.0, "b")])):
        policy = make_policy(kl_coef=0.5)
        with torch.no_grad():
            policy.model.get_input_embeddings().weight.mul_(1.5)
        imitated = [replace(other, loss="imitation") for other in others]
        kl[name] = learn(policy, [sample(policy, "1", 1e-12), *imitated]).kl
    assert kl["both"] == pytest.approx(kl["alone"], rel=1e-4)


def test_memory_that_runs_out_after_a_backward_leaves_no_gradient_behind(make_policy):
    plain, short = make_policy(), make_policy(max_tokens_per_forward=20)
    samples = [sample(plain, "1" * n, 1.0) for n in range(1, 7)]
    calls = []

    enough = short.score

    def scarce(*about):
        calls.append(1)
        if len(calls) == 2:  # one micro-batch's gradient is there already
            raise torch.OutOfMemoryError("no memory")
        return enough(*about)

    short.score = scarce
    want = learn(plain, samples).grad_norm
    assert learn(short, samples).grad_norm == pytest.approx(want, rel=1e-4)


def test_no_gradient_stays_in_memory(make_policy):
    policy = make_policy()
    learn(policy, [sample(policy, "1", 1.0)])
    assert all(p.grad is None for p in policy.model.parameters())


def test_a_peers_logprobs_are_not_scored_again(make_policy):
    policy = make_policy(dtype="mixed", learning_rate=1e-30)
    objective = replace(OBJECTIVES["grpo"], ratio_level="sequence")
    peers = [sample(policy, text, 1.0, source="b", objective=objective) for text in ("1", "2")]
    for peer in peers:  # ratio e: clipped; scored again, it would be 1
        peer.behavior_logprobs = [value - 1.0 for value in peer.behavior_logprobs]
    assert learn(policy, peers, updates=2).sample_outcomes["clipped"] == 2


def test_samples_with_different_losses_share_a_forward_pass(make_policy, monkeypatch):
    """Own, received and imitated samples: the gradient is the sum of those of separate passes."""
    gradients, passes = [], []
    for most in (1, 10_000):
        policy = make_policy(max_tokens_per_forward=most)
        samples = [
            *sampled(policy)[:4],
            sample(policy, "2", -0.5, source="b"),
            sample(policy, "1+1=2", 0.0, source="b", loss="imitation", weight=0.3),
            sample(policy, "7", 0.0, loss="imitation"),
        ]
        score, calls = policy.score, []
        monkeypatch.setattr(policy, "score", lambda *a, s=score, c=calls: c.append(1) or s(*a))
        monkeypatch.setattr(policy, "step_optimizer", lambda: None)
        monkeypatch.setattr(policy, "zero_grad", lambda: None)
        learn(policy, samples)
        gradients.append([p.grad for p in policy.model.parameters()])
        passes.append(len(calls))
    assert passes == [len(samples), 1]
    for alone, together in zip(*gradients, strict=True):
        torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-3)


def test_objectives_are_not_mixed(make_policy):
    policy = make_policy()
    narrow = replace(OBJECTIVES["grpo"], ratio_level="sequence")
    two = [
        sample(policy, text, 1.0, source="b", objective=objective)
        for text, objective in (("1", narrow), ("2", replace(narrow, clip_high=9.0)))
    ]
    for one in two:
        one.behavior_logprobs = [value - 1.0 for value in one.behavior_logprobs]
    assert learn(policy, two).sample_outcomes == {"clipped": 1, "taught": 1}


def test_dr_grpo_divides_by_the_longest_completion_allowed(make_policy):
    norms = []
    for most in (8, 16):
        policy = make_policy(objective="dr_grpo", max_new_tokens=most)
        norms.append(learn(policy, [sample(policy, "12", 1.0)]).grad_norm)
    assert norms[0] == pytest.approx(2 * norms[1], rel=1e-4)


@pytest.mark.parametrize("loss", ["policy", "imitation"])
def test_a_sample_of_weight_0_is_dropped(make_policy, loss):
    policy = make_policy()
    stats = learn(policy, [sample(policy, "1", 1.0, source="b", loss=loss, weight=0.0)])
    assert (stats.sample_outcomes, stats.updates) == ({"dropped": 1}, 0)


def test_an_infinite_norm_changes_no_weight(make_policy):
    policy = make_policy()
    stats = learn(policy, [sample(policy, "1", 1e30)])  # finite, its norm is not
    assert (stats.updates_skipped, policy.version) == (1, 0)
    assert all(bool(p.isfinite().all()) for p in policy.model.parameters())


def test_the_two_sides_of_the_clip_are_counted_apart(make_policy):
    policy = make_policy()
    objective = replace(OBJECTIVES["grpo"], ratio_level="sequence")
    for advantage, shift, want in ((-1.0, 1.0, (1, 0)), (1.0, -1.0, (0, 1))):
        earlier = sample(policy, "3", advantage, objective=objective)
        earlier.behavior_logprobs = [value + shift for value in earlier.behavior_logprobs]
        got = learn(policy, [earlier]).metrics()
        assert (got["clip_ratio/low_mean"], got["clip_ratio/high_mean"]) == want
