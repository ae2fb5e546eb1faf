import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer

from mrl.alignment import LossyText
from mrl.config import PolicyConfig
from mrl.errors import MrlError
from mrl.learning import learn
from mrl.models.loading import load_policy, load_tokenizer
from mrl.policy import Policy
from mrl.rollout import Completions
from mrl.run.problems import check_prompts, longest_prompt
from mrl.samples import Problem, TrainingSample
from mrl.settings.pairs import usual_learning_rate
from tests.sentences import names_it
from tests.test_rollout import PROBLEMS, generator

PROMPT = "Ann has 12 nuts and eats 11. How many?"


def own(policy, text, advantage, behavior=None, finished=True):
    completion_ids = policy.codec.encode(text) + [policy.eos_id] * finished
    sample = TrainingSample(policy.prompt_ids(PROMPT), completion_ids, advantage=advantage)
    sample.behavior_logprobs = [behavior or -1.0] * len(completion_ids)
    return sample


def plain_logprobs(policy, sample):
    token_ids = torch.tensor([sample.prompt_ids + sample.completion_ids])
    logits = policy.model(token_ids).logits[0, :-1].masked_fill(policy.suppressed, -torch.inf)
    logprobs = torch.log_softmax(logits, -1).gather(1, token_ids[0, 1:, None]).squeeze(1)
    return logprobs[len(sample.prompt_ids) - 1 :]


def gradients(policy):
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


@pytest.fixture
def frozen(make_policy, monkeypatch):
    """A policy whose optimizer keeps the gradient for a look instead of stepping."""

    def make(**settings):
        policy = make_policy(max_grad_norm=1e9, **settings)
        policy.optimizer = type(
            "Kept", (), {"step": lambda self: None, "zero_grad": lambda self, set_to_none: None}
        )()
        return policy

    return make


def test_scores_and_mask_come_from_lengths(make_policy):
    policy = make_policy()
    samples = [own(policy, text, 1.0) for text in ("5", "12-11: 2-1=1", "")]
    with torch.no_grad():
        logprobs, mask = policy.score(
            [s.prompt_ids for s in samples], [s.completion_ids for s in samples]
        )
        assert mask.sum(1).tolist() == [len(s.completion_ids) for s in samples]
        for row, sample in enumerate(samples):
            want = plain_logprobs(policy, sample)
            torch.testing.assert_close(logprobs[row, : len(want)], want, atol=2e-5, rtol=0)
            assert not logprobs[row, len(want) :].any()


def test_the_end_token_is_learnt_even_where_it_is_also_the_padding_token(random_pair, tmp_path):
    """SmolLM2-Instruct ships pad == end: a mask made from ids would never teach it to stop."""
    shutil.copytree(random_pair / "qwen-tiny", tmp_path / "m")
    path = tmp_path / "m" / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["pad_token"] = settings["eos_token"]
    path.write_text(json.dumps(settings))
    policy = load_policy(PolicyConfig("m", str(tmp_path / "m")))
    assert policy.tokenizer.pad_token_id == policy.eos_id
    assert not policy.suppressed[policy.eos_id]
    _, mask = policy.score([[5, 6]], [[7, policy.eos_id]])
    assert mask.tolist() == [[True, True]]


def test_what_the_tokenizer_has_no_token_for_is_suppressed_and_ids_may_have_gaps(make_policy):
    policy = make_policy()
    prompts = policy.prompts
    prompts.tokenizer = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 2}, pad_token_id=None)
    suppressed = prompts._find_suppressed(policy.model).tolist()
    assert suppressed[:4] == [False, True, False, True] and all(suppressed[4:])


@pytest.mark.parametrize(
    "answer_end, template, end",
    [("<|end|>", "", "<|end|>"), ("", "", "<eos>"), ("<|end|>", "{prompt}", "<eos>")],
)
def test_a_peers_text_ends_as_the_models_own_turns_do(
    random_pair, tmp_path, answer_end, template, end
):
    # as with Gemma: the tokenizer names <eos>, but the chat template ends a turn with another token
    shutil.copytree(random_pair / "qwen-tiny", tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    tokenizer.add_special_tokens({"eos_token": "<eos>", "additional_special_tokens": ["<|end|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}<|user|>{{ m.content }}" + answer_end + "\n{% endfor %}"
    )
    tokenizer.save_pretrained(tmp_path / "m")
    ends = tokenizer.convert_tokens_to_ids(["<eos>", "<|end|>"])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    model.resize_token_embeddings(len(tokenizer))
    model.generation_config.eos_token_id = ends
    model.save_pretrained(tmp_path / "m")

    policy = load_policy(PolicyConfig("m", str(tmp_path / "m"), template=template))
    assert policy.eos_ids == ends
    assert policy.tokenizer.convert_ids_to_tokens(policy.eos_id) == end


def test_an_end_of_turn_that_only_the_chat_template_shows_ends_a_completion(make_policy):
    """As in a fine-tuned base model, whose other files still name the base's end token."""
    policy = make_policy()
    policy.tokenizer.eos_token, policy.model.generation_config.eos_token_id = "<|user|>", 1
    policy.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<|end|>\n{% endfor %}"
    again = Policy(policy.config, policy.model, policy.tokenizer)
    assert policy.tokenizer.convert_ids_to_tokens(again.eos_id) == "<|end|>"
    assert again.eos_ids == [1, again.eos_id]


def with_tokens(policy, *tokens):
    """The policy's tokenizer, with added tokens that are not special, after the model's rows."""
    policy.tokenizer.add_tokens(list(tokens))
    return policy.tokenizer


def test_an_added_token_that_is_not_special_may_end_a_turn(make_policy):
    """As `tokenizer.add_tokens` makes it. It is then no text, neither a peer's nor a question's."""
    policy = make_policy()
    tokenizer = policy.tokenizer
    file = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in file["added_tokens"]:
        token["special"] = token["content"] != "<|end|>"
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(file))
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    tokenizer.eos_token, policy.model.generation_config.eos_token_id = "<|pad|>", 3
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    again = Policy(policy.config, policy.model, tokenizer)
    assert (again.eos_id, again.eos_ids) == (end, [3, end])
    with pytest.raises(LossyText):
        again.codec.encode("5<|end|>")
    assert again.prompt_ids("1<|end|>2").count(end) == 1  # the template's


def test_an_added_token_of_spaces_ends_nothing(make_policy):
    policy = make_policy()
    tokenizer = with_tokens(policy, "\n\n")
    policy.model.resize_token_embeddings(len(tokenizer))
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n\n<|end|>{% endfor %}"
    again = Policy(policy.config, policy.model, tokenizer)
    assert again.eos_ids == [tokenizer.convert_tokens_to_ids("<|end|>")]


PARTS = (  # of an image model, for which a content is a list
    "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}"
    "{{ part.text }}{% endif %}{% endfor %}{% endfor %}<|assistant|>"
)


@pytest.mark.parametrize("template", [PARTS, "{{ messages[0].role }}", "{{ 1 / 0 }}"])
def test_a_template_that_leaves_out_the_question_or_fails_is_refused(make_policy, template):
    policy = make_policy(system_prompt="Box it.")
    policy.tokenizer.chat_template = template
    with pytest.raises(MrlError) as caught:
        Policy(policy.config, policy.model, policy.tokenizer)
    assert names_it(str(caught.value), policy.config.path)
    assert names_it(str(caught.value), "template")


def test_a_token_for_which_the_model_has_no_row_is_refused_wherever_it_is_spelled(make_policy):
    """It was added without `resize_token_embeddings`."""
    policy = make_policy()
    tokenizer = with_tokens(policy, "<think>", "<unused>")
    again = Policy(policy.config, policy.model, tokenizer)
    problems = [Problem("1", "1+1? " * 9, "2"), Problem("2", "Use <think>. 1+1?", "2")]
    check_prompts(again, problems[:1])
    for refused in (problems, problems[::-1]):
        with pytest.raises(MrlError, match="'<think>'"):
            check_prompts(again, refused)
    with pytest.raises(LossyText):  # a peer wrote it
        again.codec.encode("<think>2")

    tokenizer.chat_template = "{{ messages[0].content }}<think>"
    with pytest.raises(MrlError, match="'<think>'"):
        Policy(policy.config, policy.model, tokenizer)


@pytest.mark.parametrize("template", ["", "<s>[INST]{prompt}[/INST]", "Q: {prompt}", "{prompt}<s>"])
def test_a_prompt_begins_once_and_does_not_end(make_policy, template):
    policy = make_policy("llama-tiny")
    begin, end = (policy.tokenizer.convert_tokens_to_ids(token) for token in ("<s>", "</s>"))
    policy.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", begin), ("</s>", end)]
    )
    policy.tokenizer.chat_template = None
    policy.config.template = template
    policy = Policy(policy.config, policy.model, policy.tokenizer)
    token_ids = policy.prompt_ids("2+2?")
    assert policy.tokenizer("2+2?").input_ids[0] == begin
    assert token_ids[0] == begin and token_ids[1] != begin
    assert end not in token_ids
    asked = template.removeprefix("<s>").replace("{prompt}", "2+2?") or "2+2?\n"
    assert policy.tokenizer.decode(token_ids[1:]).strip() == asked.strip()


@pytest.mark.parametrize("template", ["", "Q: {prompt} A:", "plain"])
@pytest.mark.parametrize("name", ["qwen-tiny", "llama-tiny"])
def test_a_question_that_spells_special_tokens_is_text(make_policy, name, template):
    policy = make_policy(name, template="" if template == "plain" else template)
    if template == "plain":
        policy.tokenizer.chat_template = None
    special = list(policy.codec.markup)
    question = f"Ann had <s>59</s> <|end|>95{''.join(special)} eggs."
    token_ids = policy.prompt_ids(question)
    template_alone = policy.prompt_ids("0")
    for token_id in policy.codec.markup.values():
        assert token_ids.count(token_id) == template_alone.count(token_id)
    assert policy.tokenizer.decode(token_ids) == policy.prompt_text(question)

    # afterwards the tokenizer reads a template's tokens as before
    assert policy.prompt_ids("0") == template_alone
    with pytest.raises(LossyText):
        policy.codec.encode(special[0])


def test_a_tokenizer_that_holds_no_text_exactly_still_reads_no_markup(make_policy):
    policy = make_policy()
    policy.codec._bytes = {}
    token_ids = policy.prompt_ids("<|end|>7")
    assert policy.tokenizer.decode(token_ids) == "<|user|><|end|>7<|assistant|>"
    assert policy.eos_id not in token_ids


def metrics_of(policy, samples):
    return learn(policy, samples).metrics()


def test_policy_gradient_against_autograd_on_a_plain_forward_pass(frozen):
    policy = frozen()
    samples = [own(policy, "1", 0.7), own(policy, "12-11: 2-1=1", -1.2)]
    for sample in samples:
        sample.behavior_logprobs = plain_logprobs(policy, sample).tolist()
    learn(policy, [*samples, own(policy, "zero", 0.0)])
    got = gradients(policy)
    policy.model.zero_grad()
    # at ratio 1 the GRPO gradient is -A * mean_t grad log p, averaged over all three completions
    loss = -sum(s.advantage * plain_logprobs(policy, s).mean() for s in samples) / 3
    loss.backward()
    torch.testing.assert_close(got, gradients(policy), atol=1e-5, rtol=1e-3)


def test_imitation_adds_weight_times_the_mean_over_its_samples_of_mean_nll(frozen):
    policy = frozen()
    samples = [own(policy, text, 0.0) for text in ("12-11", "1")]
    for sample in samples:
        sample.loss, sample.weight, sample.behavior_logprobs = "imitation", 0.1, []
    good = own(policy, "5", 0.6)
    good.behavior_logprobs = plain_logprobs(policy, good).tolist()
    learn(policy, [good, own(policy, "zero", 0.0), *samples])
    got = gradients(policy)
    policy.model.zero_grad()
    imitation = -0.1 * sum(plain_logprobs(policy, sample).mean() for sample in samples) / 2
    (imitation - 0.6 * plain_logprobs(policy, good).mean() / 2).backward()
    torch.testing.assert_close(got, gradients(policy), atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("objective", ["grpo", "dapo", "dr_grpo", "gspo"])
def test_gradients_do_not_depend_on_the_micro_batch(frozen, objective):
    results = []
    for max_tokens_per_forward in (1, 40, 2048):
        policy = frozen(max_tokens_per_forward=max_tokens_per_forward, objective=objective)
        samples = [own(policy, "1" * n, (-1) ** n * n, behavior=-5.0) for n in range(1, 6)]
        samples.append(own(policy, "99", 0.0))
        samples[-1].loss = "imitation"
        learn(policy, samples)
        results.append(gradients(policy))
    torch.testing.assert_close(results[0], results[2], atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(results[1], results[2], atol=1e-5, rtol=1e-3)


def test_learning_raises_what_had_a_positive_advantage(make_policy):
    policy = make_policy(learning_rate=1e-3)
    good, bad = own(policy, "1", 1.0), own(policy, "2", -1.0)
    with torch.no_grad():
        before = [plain_logprobs(policy, s).sum() for s in (good, bad)]
        for sample in (good, bad):
            sample.behavior_logprobs = plain_logprobs(policy, sample).tolist()
    learn(policy, [good, bad])
    with torch.no_grad():
        after = [plain_logprobs(policy, s).sum() for s in (good, bad)]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert policy.version == 1


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(make_policy):
    policy = make_policy()
    before = [p.clone() for p in policy.model.parameters()]
    metrics = metrics_of(policy, [own(policy, "1", float("inf")), own(policy, "2", -1.0)])
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    assert (policy.version, metrics["update_skipped"], metrics["grad_norm"]) == (0, 1, 0.0)
    assert metrics_of(policy, [own(policy, "1", 1.0)])["update_skipped"] == 0


def test_templates_chat_plain_and_own(make_policy, random_pair):
    policy = make_policy()
    decode = policy.tokenizer.decode
    assert decode(policy.prompt_ids("2+2?")) == "<|user|>2+2?<|assistant|>"
    own_template = make_policy(template="Q: {prompt} A:")
    assert decode(own_template.prompt_ids("2+2?")) == "Q: 2+2? A:"
    policy.tokenizer.chat_template = None
    assert decode(policy.prompt_ids("2+2?")) == "2+2?\n"


def test_the_system_prompt_is_asked_whatever_the_template(make_policy):
    policy = make_policy(system_prompt="Box it.")
    policy.tokenizer.chat_template = None  # a base model
    assert policy.prompt_text("2+2?") == "Box it.\n\n2+2?\n"
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}; {% endfor %}"
    )
    assert policy.prompt_text("2+2?") == "system: Box it.; user: 2+2?; "
    no_system = "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}"
    policy.tokenizer.chat_template = no_system + "{{ messages[0].content }}"
    assert policy.prompt_text("2+2?") == "Box it.\n\n2+2?"
    # the first template of Phi-3-mini leaves a system message out without a word
    policy.tokenizer.chat_template = (
        "{% for m in messages if m.role == 'user' %}<|user|>{{ m.content }}{% endfor %}"
    )
    assert policy.prompt_text("2+2?") == "<|user|>Box it.\n\n2+2?"
    # the tiny pair's leaves it out on purpose: no demonstration had one
    policy.tokenizer.chat_template = (
        "{% for m in messages if m.role != 'system' %}<|user|>{{ m.content }}{% endfor %}"
    )
    assert policy.prompt_text("2+2?") == "<|user|>2+2?"


def test_a_template_does_not_think_and_asks_the_same_tomorrow(make_policy):
    policy = make_policy()
    policy.tokenizer.chat_template = (
        "{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}"
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    )
    assert policy.prompt_text("2+2?") == "26 Jul 20242+2?<think></think>"


def test_a_tokenizer_without_a_fast_backend_gets_one_sentence(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(MrlError, match="its tokenizer cannot be loaded"):
        load_tokenizer(str(tmp_path))


def test_a_prompt_longer_than_the_context_is_refused(make_policy):
    policy = make_policy()
    with pytest.raises(MrlError, match=r"^Problem long \('nuts nuts .*\b256\b"):
        longest_prompt(policy, [Problem("long", "nuts " * 300, "1")])
    problems = [Problem("short", "nuts?", "1")]
    same_id = [Problem("1", "nuts " * 300, "1"), Problem("1", "1+1", "2")]  # of two files
    with pytest.raises(MrlError, match="context"):
        longest_prompt(policy, same_id)
    with pytest.raises(MrlError, match="context"):  # the bytes of the longest do not fit either
        check_prompts(policy, same_id)
    check_prompts(policy, problems)
    # the prompt with most bytes need not be the one with most tokens
    many_tokens = Problem("many", "1 " * 140, "1")
    most_bytes = Problem("bytes", "nuts " * 60, "1")
    assert len(policy.prompt_ids(many_tokens.prompt)) > len(policy.prompt_ids(most_bytes.prompt))
    with pytest.raises(MrlError, match="Problem many"):
        check_prompts(policy, [most_bytes, many_tokens])
    policy.model.config.sliding_window = 8  # hides what is far, but takes any length
    assert longest_prompt(policy, problems) + policy.max_new_tokens > 8


def test_the_size_decides_on_the_learning_rate(make_policy):
    assert make_policy(learning_rate=3e-3).optimizer.param_groups[0]["lr"] == 3e-3
    sizes = {135e6: 3e-5, 494e6: 2e-6, 7e9: 1e-6, 8e5: 1e-4}
    assert {size: usual_learning_rate(size) for size in sizes} == sizes


def test_what_is_scored_has_the_temperature_of_what_was_sampled(make_policy):
    policy = make_policy(temperature=0.7, max_new_tokens=6)
    (made,) = policy.rollout(PROBLEMS[:1], generator(), 4)
    scored = policy.logprobs_of([made.prompt_ids] * 4, [r.completion_ids for r in made.rollouts])
    for rollout, logprobs in zip(made.rollouts, scored, strict=True):
        assert rollout.logprobs == pytest.approx(logprobs, abs=2e-5)


def test_special_tokens_stay_visible_to_the_verifier(make_policy, monkeypatch):
    policy = make_policy()
    ids = [
        policy.tokenizer.convert_tokens_to_ids("<|user|>"),
        *policy.codec.encode("1"),
        policy.eos_id,
    ]
    written = Completions(
        torch.tensor([ids]),
        torch.zeros(1, len(ids)),
        torch.tensor([len(ids)]),
        torch.tensor([True]),
    )
    monkeypatch.setattr("mrl.policy.sample_completions", lambda *a, **k: written)
    (made,) = policy.rollout(PROBLEMS[:1], generator(), 1)
    assert made.rollouts[0].text == "<|user|>1"


def test_the_chat_template_adds_no_second_begin_token(make_policy):
    policy = make_policy()
    first = ("<|assistant|>", policy.tokenizer.convert_tokens_to_ids("<|assistant|>"))
    policy.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|assistant|> $A", special_tokens=[first]
    )
    assert policy.tokenizer("1").input_ids[0] == first[1]
    assert policy.tokenizer.decode(policy.prompt_ids("2+2?")) == "<|user|>2+2?<|assistant|>"


def test_weight_decay_reaches_the_optimizer(make_policy):
    policy = make_policy(weight_decay=0.1)
    assert policy.optimizer.param_groups[0]["weight_decay"] == 0.1
