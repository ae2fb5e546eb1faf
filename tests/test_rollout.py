from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config
from transformers.cache_utils import DynamicSlidingWindowLayer

from mrl import rollout as module
from mrl import rollout as rollout_module
from mrl.config import PolicyConfig
from mrl.errors import RunFailed
from mrl.logprobs import scaled_logprobs
from mrl.models.loading import load_policy, load_tokenizer
from mrl.placement import Allocation
from mrl.rollout import draw, sample_completions
from mrl.samples import Problem

PROBLEMS = [
    Problem("a", "Ann has 12 nuts and eats 11. How many?", "1"),
    Problem("b", "7*8?", "56"),
    Problem("c", "Ben had 30 coins. Now Ben finds 12. How many?", "42"),
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_draw_takes_the_first_entry_above_the_uniform_number():
    logprobs = torch.log(torch.tensor([[0.2, 0.0, 0.3, 0.5]] * 4))
    uniform = torch.tensor([0.0, 0.19, 0.2, 0.9999999])
    assert draw(logprobs, uniform).tolist() == [0, 0, 2, 3]


def test_a_token_of_probability_zero_is_never_drawn():
    logprobs = torch.log(torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]] * 2))
    assert draw(logprobs, torch.tensor([0.0, 0.9999999])).tolist() == [1, 3]


def test_logits_that_are_no_numbers_end_the_turn_with_a_sentence(make_policy):
    broken = torch.full((2, 5), torch.nan)
    assert draw(broken, torch.tensor([0.0, 0.5])).tolist() == [4, 4]  # an index that is there
    policy = make_policy(max_new_tokens=4)
    policy.model.get_decoder().norm.weight.data[:] = torch.nan
    allocation = Allocation([policy], [policy.name])
    wrong = r"^qwen-tiny failed in its rollout turn: the model's log-probs are not finite.*\.$"
    with pytest.raises(RunFailed, match=wrong), allocation.turn(policy, "rollout"):
        policy.rollout(PROBLEMS, generator(), 2)


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_the_cache_is_as_small_as_the_computation(make_policy, monkeypatch, dtype):
    """Under autocast keys leave the rotary embedding in float32, and `cat` promotes the values."""
    caches, want = [], torch.float32 if dtype == "float32" else torch.bfloat16
    prefill = module._prefill
    monkeypatch.setattr(module, "_prefill", lambda *a: caches.append(got := prefill(*a)) or got)
    make_policy(dtype=dtype, max_new_tokens=6).rollout(PROBLEMS, generator(), 2)
    _, mask, _, cache = caches[-1]  # the first is that of the trial at loading, in float32
    layers = cache.layers
    assert {tensor.dtype for layer in layers for tensor in (layer.keys, layer.values)} == {want}
    assert layers[0].keys.shape[2] > mask.shape[1]  # tokens were added to it


def test_no_row_of_attention_sees_nothing(make_policy, monkeypatch):
    """Padding neither: some CUDA kernels make NaN of such a row (unsloth issue 9848)."""
    attention, seen = torch.nn.functional.scaled_dot_product_attention, []

    def watch(query, key, value, attn_mask=None, **options):
        if attn_mask is not None:
            masked = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask < -1e30
            seen.append((masked.shape[2], bool(masked.all(dim=-1).any())))
        return attention(query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    policy = make_policy(max_new_tokens=6)
    groups = policy.rollout(PROBLEMS, generator(), 2)
    lengths = [len(group.prompt_ids) for group in groups]
    assert len(set(lengths)) == 3
    assert max(lengths) in {queries for queries, _ in seen}  # the prompts' own pass had a mask
    rollouts = [(group.prompt_ids, r.completion_ids) for group in groups for r in group.rollouts]
    policy.logprobs_of(*map(list, zip(*rollouts, strict=True)))
    assert not any(blind for _, blind in seen)


def test_a_model_with_sliding_layers_makes_its_own_masks():
    mask = torch.tensor([[False, True, True], [True, True, True]])
    model = SimpleNamespace(dtype=torch.float32)
    cache = module.DynamicCache(config=Qwen2Config(num_hidden_layers=2))
    bias = module._prompt_mask(model, mask, cache)
    assert bias.shape == (2, 1, 3, 3)
    assert (bias[0, 0] == 0).tolist() == [
        [True, False, False],
        [False, True, False],
        [False, True, True],
    ]
    assert (bias[1, 0] == 0).tolist() == torch.ones(3, 3).bool().tril().tolist()
    cache.layers[1] = DynamicSlidingWindowLayer(sliding_window=2)
    assert module._prompt_mask(model, mask, cache) is mask


@pytest.mark.parametrize("vocabulary", [module.SMALL_VOCABULARY + 1, 10_007])
def test_a_draw_on_two_levels_is_the_draw_on_one(monkeypatch, vocabulary):
    """Most tokens have probability 0, as those of a peaked distribution have in float32."""
    logprobs = torch.randn(400, vocabulary, generator=generator()) * 6
    logprobs = torch.log_softmax(logprobs.where(logprobs > 3, -torch.inf), dim=-1)
    uniform = torch.rand(400, generator=generator(1))
    uniform[:2] = torch.tensor([0.0, 1 - 2**-24])
    two_levels = draw(logprobs, uniform)
    assert logprobs.gather(1, two_levels[:, None]).isfinite().all()
    monkeypatch.setattr(module, "SMALL_VOCABULARY", vocabulary)
    assert (two_levels == draw(logprobs, uniform)).float().mean() > 0.99  # sums round differently
    broken = torch.full((2, vocabulary), torch.nan)
    assert (draw(broken, uniform[:2]) < vocabulary).all()


def test_scaled_logprobs_divides_by_the_temperature_and_leaves_suppressed_tokens_out():
    logits = torch.tensor([[1.0, 3.0, 100.0]])
    given = logits.clone()
    got = scaled_logprobs(logits, torch.tensor([2]), temperature=2.0).exp()
    want = torch.softmax(torch.tensor([0.5, 1.5]), dim=0)
    torch.testing.assert_close(got, torch.cat([want, torch.zeros(1)])[None])
    assert torch.equal(logits, given)  # also in float32, where no cast makes a copy


@pytest.fixture
def absolute_positions(random_pair, tmp_path):
    """A GPT-2 policy: learned absolute positions, which show a shift that rotary ones hide."""
    tokenizer = load_tokenizer(str(random_pair / "qwen-tiny"))
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=2)
    config.eos_token_id = config.bos_token_id = tokenizer.eos_token_id
    model = GPT2LMHeadModel(config)
    torch.nn.init.normal_(model.transformer.wpe.weight, std=1.0)
    model.save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    return load_policy(PolicyConfig("gpt2", str(tmp_path / "gpt2"), max_new_tokens=12))


def test_positions_are_counted_from_the_first_real_token(absolute_positions):
    policy = absolute_positions
    groups = policy.rollout(PROBLEMS, generator(), group_size=3)
    assert_logprobs_of_a_plain_forward_pass(policy, groups)
    rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
    with torch.no_grad():
        scored, mask = policy.score(
            [group.prompt_ids for group, _ in rollouts],
            [rollout.completion_ids for _, rollout in rollouts],
        )
    for row, (_, rollout) in enumerate(rollouts):
        assert scored[row][mask[row]].tolist() == pytest.approx(rollout.logprobs, abs=2e-5)


@pytest.mark.parametrize("name", ["qwen-tiny", "llama-tiny"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rollout_logprobs_are_those_of_a_plain_forward_pass(make_policy, name, temperature):
    policy = make_policy(name, temperature=temperature, max_new_tokens=12)
    groups = policy.rollout(PROBLEMS, generator(), group_size=3)
    assert_logprobs_of_a_plain_forward_pass(policy, groups, temperature)


def assert_logprobs_of_a_plain_forward_pass(policy, groups, temperature=1.0):
    for group in groups:
        for rollout in group.rollouts:
            token_ids = torch.tensor([group.prompt_ids + rollout.completion_ids])
            with torch.no_grad():
                logits = policy.model(token_ids).logits[0].double() / temperature
            logits[:, policy.suppressed] = -torch.inf
            start = len(group.prompt_ids)
            want = [
                float(torch.log_softmax(logits[start + t - 1], -1)[token])
                for t, token in enumerate(rollout.completion_ids)
            ]
            assert rollout.logprobs == pytest.approx(want, abs=2e-5)


@pytest.mark.parametrize("name", ["qwen-tiny", "llama-tiny"])
def test_near_temperature_0_the_tokens_are_those_of_generate(make_policy, name):
    policy = make_policy(name, max_new_tokens=10, temperature=1e-5)
    groups = policy.rollout(PROBLEMS, generator(), group_size=2)
    suppressed = policy.suppressed.nonzero().squeeze(1).tolist()
    for group in groups:
        want = policy.model.generate(
            torch.tensor([group.prompt_ids]),
            do_sample=False,
            max_new_tokens=10,
            suppress_tokens=suppressed,
            pad_token_id=0,
        )[0, len(group.prompt_ids) :].tolist()
        assert [r.completion_ids for r in group.rollouts] == [want, want]


def sample(policy, prompts, group_size, seed=0, eos_ids=None):
    return sample_completions(
        policy.model,
        [policy.prompt_ids(prompt) for prompt in prompts],
        group_size,
        max_new_tokens=12,
        temperature=1.0,
        eos_ids=torch.tensor(policy.eos_ids if eos_ids is None else eos_ids),
        suppressed=policy.suppressed,
        generator=generator(seed),
    )


def test_rows_that_end_early_do_not_change_the_others(make_policy):
    policy = make_policy()
    prompts = [problem.prompt for problem in PROBLEMS]
    whole = sample(policy, prompts, 8, eos_ids=[-1])  # nothing ever ends
    ends = list(range(0, len(policy.tokenizer), 7))  # one token in seven ends a completion
    cut = sample(policy, prompts, 8, eos_ids=ends)
    assert cut.finished.sum() > 12  # rows have really left the batch
    for row, length in enumerate(cut.lengths.tolist()):
        assert torch.equal(cut.token_ids[row, :length], whole.token_ids[row, :length])
        assert torch.allclose(cut.logprobs[row, :length], whole.logprobs[row, :length], atol=1e-4)


def test_a_completion_ends_with_its_first_end_token(make_policy):
    policy = make_policy()
    ends = set(range(0, len(policy.tokenizer), 7))
    done = sample(policy, ["7*8?"], 16, eos_ids=sorted(ends))
    for row, length in enumerate(done.lengths.tolist()):
        tokens = done.token_ids[row, :length].tolist()
        assert not ends & set(tokens[:-1])
        assert (tokens[-1] in ends) == bool(done.finished[row])
        assert done.finished[row] or length == 12


def test_padding_never_reaches_a_completion(make_policy):
    policy = make_policy()
    with torch.no_grad():  # make the padding token the likeliest by far
        policy.model.get_output_embeddings().weight[policy.tokenizer.pad_token_id] = 10.0
    done = sample(policy, ["7*8?"], 64)
    assert not (done.token_ids == policy.tokenizer.pad_token_id).any()


def test_same_seed_same_completions_other_seed_others(make_policy):
    policy = make_policy()
    one, two, three = (sample(policy, ["7*8?", "9-4?"], 4, seed) for seed in (1, 1, 2))
    assert torch.equal(one.token_ids, two.token_ids)
    assert torch.equal(one.logprobs, two.logprobs)
    assert not torch.equal(one.token_ids, three.token_ids)


def test_completions_of_a_group_differ(make_policy):
    one = sample(make_policy(), ["7*8?", "9-4?"], 4, 1)
    assert len({tuple(row) for row in one.token_ids[:4].tolist()}) == 4


@pytest.mark.parametrize("written_out", [True, False])
def test_rows_that_ended_leave_the_batch(make_policy, monkeypatch, written_out):
    policy, sizes = make_policy(), []
    if not written_out:
        monkeypatch.setattr(rollout_module, "one_token_decoder", lambda model: None)
    read = rollout_module._Rows.read
    monkeypatch.setattr(
        rollout_module._Rows, "read", lambda rows, ids: sizes.append(len(ids)) or read(rows, ids)
    )
    sample(policy, ["7*8?"], 16, eos_ids=list(range(0, len(policy.tokenizer), 7)))
    assert min(sizes[1:]) < 16 == max(sizes)
