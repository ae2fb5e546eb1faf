"""Families of models, each as a random tiny model: computed right, or refused with the reason.

The weights are drawn with a standard deviation of 0.2, because at the usual 0.02 all logits are so
near to 0 that a wrong computation gives nearly the right numbers. Windows are shorter than what is
scored.

    python -m tests.test_families     # the table of RUNNING.md, within minutes
"""

import re
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from mrl.config import DATA, PolicyConfig
from mrl.errors import MrlError
from mrl.learning import learn
from mrl.models.loading import load_policy, load_tokenizer, plain_logprobs
from mrl.models.memory_estimate import size_of
from mrl.run.directory import finish_checkpoint, restore_optimizers, save_policies
from mrl.run.problems import longest_prompt
from mrl.samples import TrainingSample
from tests.test_rollout import PROBLEMS, generator

RUNNING = Path(__file__).parents[1] / "mrl" / "cli" / "RUNNING.md"
RIGHT = "works: sampled, scored, trained and resumed correctly"
GAP = 1e-4  # nats in float32, of numbers that are the same but for rounding
SHAPE = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 256,
}  # fmt: skip
GROUPED = {**SHAPE, "num_key_value_heads": 2, "head_dim": 16}
SLIDING = {**GROUPED, "sliding_window": 16}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    **SHAPE, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
OLD = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}
BOTH_KINDS = ["sliding_attention", "full_attention"] * 2
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, **FACTORS}

FAST = {
    "Llama": {**GROUPED, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    }},
    "Gemma3Text": {**SLIDING, "layer_types": BOTH_KINDS},
    "Mistral": SLIDING,
    "Granite": {**GROUPED, "logits_scaling": 8.0, "attention_multiplier": 0.3},
    "GPT2": OLD,
}  # fmt: skip
SLOW = {
    "Qwen2": {**SHAPE, "num_key_value_heads": 2, "use_sliding_window": True,
              "sliding_window": 16, "max_window_layers": 2},
    "Qwen3": GROUPED,
    "Qwen3Moe": EXPERTS,
    "Phi": SHAPE,
    "Phi3": {**SHAPE, "num_key_value_heads": 2, "sliding_window": 16},
    "Olmo2": {**SHAPE, "num_key_value_heads": 2},
    "Olmo3": {**SLIDING, "layer_types": BOTH_KINDS},
    "Olmoe": {**SHAPE, "num_experts": 4, "num_experts_per_tok": 2},
    "SmolLM3": GROUPED,
    "Gemma": GROUPED,
    "Gemma2": {**SLIDING, "query_pre_attn_scalar": 16, "final_logit_softcapping": 5.0,
               "attn_logit_softcapping": 10.0},
    "Gemma4Text": {**SLIDING, "layer_types": BOTH_KINDS, "hidden_size_per_layer_input": 0,
                   "global_head_dim": 16, "num_kv_shared_layers": 0},
    "OPT": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 96,
            "max_position_embeddings": 256, "word_embed_proj_dim": 64},
    "GPTNeoX": SHAPE,
    "GPTJ": {**OLD, "rotary_dim": 8},
    "CodeGen": {**OLD, "rotary_dim": 8},
    "GPTBigCode": OLD,
    "XGLM": {"d_model": 64, "num_layers": 3, "attention_heads": 4, "ffn_dim": 96,
             "max_position_embeddings": 256},
    "Falcon": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
               "max_position_embeddings": 256},
    "StableLm": {**SHAPE, "num_key_value_heads": 2},
    "Starcoder2": {**SHAPE, "num_key_value_heads": 2, "sliding_window": 16},
    "Glm4": GROUPED,
    "Helium": GROUPED,
    "Ernie4_5": GROUPED,
    "Exaone4": {**SLIDING, "layer_types": BOTH_KINDS},
    "Arcee": GROUPED,
    "Apertus": GROUPED,
    "HunYuanDenseV1": GROUPED,
    "Nemotron": GROUPED,
    "Mixtral": {**SHAPE, "num_key_value_heads": 2, "num_local_experts": 4, "sliding_window": 16},
    "DeepseekV3": {**LATENT, "moe_intermediate_size": 48, "n_routed_experts": 4, "n_group": 2,
                   "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "GptOss": {**SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2,
               "layer_types": BOTH_KINDS},
    "GraniteMoe": {**SHAPE, "num_key_value_heads": 2, "num_local_experts": 4,
                   "num_experts_per_tok": 2, "logits_scaling": 3.0},
    "Cohere": {**SHAPE, "num_key_value_heads": 2, "logit_scale": 0.0625},
    "Cohere2": {**SLIDING, "logit_scale": 0.25, "layer_types": BOTH_KINDS},
    "NanoChat": {**SHAPE, "num_key_value_heads": 2, "final_logit_softcapping": 5.0},
    "SeedOss": GROUPED,
    "Persimmon": SHAPE,
    "Gemma3": {},  # with a vision tower, see `config_of`
}  # fmt: skip
KINDS = {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"] * 2}
STATES = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
HEADS = {"num_heads": 8, "head_dim": 16, "n_groups": 2}
GLOBAL_AND_LOCAL = {"attention_types": [[["global", "local"], 1]], "window_size": 16}
MIXED = {**GROUPED, "num_local_experts": 2, "intermediate_size_mlp": 96}
REFUSED = {
    "GPTNeo": ({"hidden_size": 64, "num_layers": 2, "num_heads": 4, **GLOBAL_AND_LOCAL}, "local"),
    "Lfm2": ({**SHAPE, **KINDS}, "recurrent .*conv"),
    "Qwen3Next": (EXPERTS, "recurrent"),
    "Qwen3_5Text": (GROUPED, "recurrent"),
    "FalconH1": (SHAPE, "recurrent"),
    "Mamba": (STATES, "recurrent"),
    "Mamba2": ({**STATES, **HEADS}, "recurrent"),
    "Jamba": ({**SHAPE, "num_key_value_heads": 2}, "recurrent"),
    "RecurrentGemma": ({**SHAPE, "attention_window_size": 16}, "recurrent"),
    "GraniteMoeHybrid": ({**SHAPE, "layer_types": ["mamba", "attention"] * 2}, "recurrent"),
    "Rwkv": ({"hidden_size": 64, "num_hidden_layers": 2}, "recurrent"),
    "Mpt": ({"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 256}, "not supported"),
    "Bloom": ({"hidden_size": 64, "n_layer": 2, "n_head": 4}, "cannot score"),
    "Llama4Text": (MIXED, "chunked_attention"),
    "ModernBertDecoder": (SHAPE, "cannot score"),
    "T5": ({"d_model": 64, "num_layers": 2}, "decoder-only"),
    "Bert": (SHAPE, "decoder-only"),
    "ViT": ({"hidden_size": 64, "num_hidden_layers": 2}, "decoder-only"),
}


def config_of(family, settings, tokenizer):
    """A configuration of a family that is as small as the tiny pair's."""
    end = tokenizer.eos_token_id
    ends = {"eos_token_id": end, "bos_token_id": end, "pad_token_id": tokenizer.pad_token_id}
    settings = {**settings, "vocab_size": len(tokenizer), **ends}
    if family == "Gemma3":
        text = {**SLIDING, "layer_types": BOTH_KINDS, **settings}
        eye = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
               "intermediate_size": 32, "image_size": 28, "patch_size": 14}  # fmt: skip
        return transformers.Gemma3Config(text_config=text, vision_config=eye, mm_tokens_per_image=4)
    return getattr(transformers, f"{family}Config")(**settings)


def save_random(directory, source, family, settings):
    """A model of the family with large random weights, and a tiny tokenizer beside it."""
    tokenizer = load_tokenizer(str(source))
    config = config_of(family, settings, tokenizer)
    torch.manual_seed(3)
    known = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    model = (AutoModelForCausalLM if known else transformers.AutoModel).from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def gap_of(policy, groups):
    """How far sampled and packed log-probs are from each completion's own forward pass."""
    furthest = 0.0
    for group in groups:
        completions = [rollout.completion_ids for rollout in group.rollouts]
        packed = policy.logprobs_of([group.prompt_ids] * len(completions), completions)
        for rollout, scored in zip(group.rollouts, packed, strict=True):
            pair = group.prompt_ids, rollout.completion_ids
            with torch.no_grad():
                plain = plain_logprobs(
                    policy.model, *pair, suppressed=policy.suppressed, temperature=1.0
                )
            for found in (scored, rollout.logprobs):
                furthest = max(furthest, float((torch.tensor(found) - plain).abs().max()))
    return furthest


def train_one_step(policy, seed):
    groups = policy.rollout(PROBLEMS, generator(seed))
    samples = [
        TrainingSample(
            group.prompt_ids, r.completion_ids, advantage=(-1.0) ** n, behavior_logprobs=r.logprobs
        )
        for group in groups
        for n, r in enumerate(group.rollouts)
    ]
    return learn(policy, samples)


def families():
    for family, settings in FAST.items():
        yield pytest.param(family, settings, id=family)
    for family, settings in SLOW.items():
        yield pytest.param(family, settings, id=family, marks=pytest.mark.slow)


@pytest.mark.parametrize(("family", "settings"), list(families()))
def test_a_family_is_computed_right_learns_and_is_resumed(tmp_path, random_pair, family, settings):
    path = save_random(tmp_path / "model", random_pair / "qwen-tiny", family, settings)
    config = PolicyConfig("it", str(path), group_size=4, max_new_tokens=24, learning_rate=1e-3)
    policy = load_policy(config)
    size = size_of(config, torch.device("cpu"))
    assert (
        size.moves == 3 * size.gradients == 12 * sum(p.numel() for p in policy.model.parameters())
    )

    groups = policy.rollout(PROBLEMS, generator())
    assert len({len(group.prompt_ids) for group in groups}) == 3
    assert gap_of(policy, groups) < GAP

    # an update, a checkpoint, and another update from there
    stats = train_one_step(policy, 1)
    assert stats.updates == 1
    assert stats.own.logprob_gap_max < GAP
    partial = save_policies(tmp_path / "run", 1, [policy])
    state = {"step": 1, "policies": {"it": {"version": policy.version}}}
    finish_checkpoint(tmp_path / "run", partial, state)
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000001"

    config.path = str(checkpoint / "it")
    resumed = load_policy(config)
    restore_optimizers(checkpoint, [resumed], state)
    train_one_step(policy, 2)
    train_one_step(resumed, 2)
    for mine, other in zip(policy.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert gap_of(resumed, resumed.rollout(PROBLEMS, generator(3))) < GAP


def refusal(folder, source, family):
    """The sentence that refuses a family."""
    path = save_random(folder / "model", source, family, REFUSED[family][0])
    with pytest.raises(MrlError, match="cannot be trained by this program: ") as caught:
        load_policy(PolicyConfig("it", str(path)))
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def shown(sentence):
    """What the table says of a refusal: its reason, without figures and errors of other code."""
    reason = sentence.partition(" cannot be trained by this program: ")[2].rstrip(".")
    return "refused: " + re.sub(r" \(.* .*\)| by \S+ nats", "", reason)


def families_table(refusals):
    """Markdown; refusals: the sentence of each family that is refused."""
    of: dict[str, list[str]] = defaultdict(list)
    of[RIGHT] = sorted([*FAST, *SLOW])
    for family, sentence in sorted(refusals.items()):
        of[shown(sentence)].append(family)
    rows = [f"| {', '.join(names)} | {result} |" for result, names in of.items()]
    return "\n".join(["| family | result |", "|---|---|", *rows])


def results_on_page():
    """The result of each family in RUNNING.md."""
    results = {}
    section = RUNNING.read_text(encoding="utf-8").partition("## Which models can be trained?")[2]
    for names, result in re.findall(r"(?m)^\| (.*) \| ((?:works|refused): .*) \|$", section):
        results |= dict.fromkeys(names.split(", "), result)
    return results


def test_the_table_of_families_names_each_with_its_result():
    """The slow tests compare the refusals themselves."""
    results = results_on_page()
    assert results.keys() == {*FAST, *SLOW, *REFUSED}
    assert {results[family] for family in (*FAST, *SLOW)} == {RIGHT}
    assert all(results[family].startswith("refused: ") for family in REFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_cannot_be_trained_is_refused_with_the_reason(tmp_path, random_pair, family):
    sentence = refusal(tmp_path, random_pair / "qwen-tiny", family)
    assert re.search(REFUSED[family][1], sentence)
    assert "\n" not in sentence
    assert results_on_page()[family] == shown(sentence)


def test_falcon_with_alibi_is_refused_as_the_page_says(tmp_path, random_pair):
    settings = {**SLOW["Falcon"], "alibi": True}
    path = save_random(tmp_path / "model", random_pair / "qwen-tiny", "Falcon", settings)
    with pytest.raises(MrlError, match="its code cannot score several"):
        load_policy(PolicyConfig("it", str(path)))
    assert "`alibi`" in RUNNING.read_text(encoding="utf-8")


def test_longrope_is_refused_beyond_its_original_length(tmp_path, random_pair):
    """Its angles change there for the whole text, but keys of earlier tokens keep the old ones."""
    rope = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}
    settings = {**SHAPE, "num_key_value_heads": 4, **rope}
    path = save_random(tmp_path, random_pair / "qwen-tiny", "Phi3", settings)
    policy = load_policy(PolicyConfig("it", str(path), group_size=4, max_new_tokens=24))
    longest = longest_prompt(policy, PROBLEMS)
    assert gap_of(policy, policy.rollout(PROBLEMS, generator())) < GAP
    policy.max_new_tokens = 64 - longest
    assert longest_prompt(policy, PROBLEMS) == longest
    policy.max_new_tokens += 1
    with pytest.raises(MrlError, match="64"):
        longest_prompt(policy, PROBLEMS)


if __name__ == "__main__":
    found = {}
    for name in REFUSED:
        with tempfile.TemporaryDirectory() as temporary:
            found[name] = refusal(Path(temporary), DATA / "tiny" / "qwen-tiny", name)
    print(families_table(found))
