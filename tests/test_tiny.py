import re
import runpy
from itertools import islice
from statistics import mean

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mrl.alignment import ByteCodec
from mrl.config import DATA, PolicyConfig
from mrl.lab.commands import warmstart
from mrl.models.loading import load_policy, load_tokenizer
from mrl.run.evaluation import count_solved, score_entries
from mrl.run.problems import load_problems
from mrl.settings.read import run_config
from mrl.tiny.pair import (
    BATCH,
    BLIND_SPOTS,
    PAIR,
    STRONG_SKILLS,
    THIRD,
    UPDATES,
    UPDATES_IN_LEAPS,
    WEAK_SKILLS,
    _warm_start,
    demonstrations,
    encode_example,
    tiny_tokenizer,
    warm_start_pair,
)
from mrl.tiny.skills import (
    DATA_SEED,
    NUMBERS,
    OPERATIONS,
    PROBLEM_SETS,
    SKILLS,
    columns,
    generate,
    leaps,
    leaps_for_everything,
    make_problem_sets,
    solution,
)

METHODS = (columns, leaps, leaps_for_everything)
HELDOUT = load_problems(DATA / "words" / "validation.jsonl")


def start_scores(directory, verifier):
    """Policy -> skill -> held-out pass@1."""
    scores = {}
    for name in PAIR:
        policy = load_policy(PolicyConfig(name, str(directory / name)))
        splits = {"validation": HELDOUT}
        solved = count_solved(policy, splits, verifier, samples=2, seed=0)
        (entry,) = score_entries({name: solved}, splits, samples=2)
        scores[name] = {skill: of["pass@1"] for skill, of in entry["skills"].items()}
    return scores


def assert_both_kinds_of_lack(scores):
    """Each policy reads its own skills right, others rarely, and its blind spots never."""
    for name, by_skill in scores.items():
        for skill, score in by_skill.items():
            if skill in STRONG_SKILLS[name]:
                assert score > 0.75, (name, skill, score)
            elif skill in BLIND_SPOTS[name]:
                assert score < 0.03, (name, skill, score)
            else:
                assert 0.02 < score < 0.40, (name, skill, score)


def test_a_run_asks_the_shipped_pair_as_its_warm_start_did():
    # data/words has a system prompt for pretrained models, which the tiny pair has never read
    for config in run_config("tiny", None, {}, []).policies:
        policy = load_policy(config)
        asked, labels = encode_example(policy.tokenizer, HELDOUT[0].prompt, "1")
        assert policy.prompt_ids(HELDOUT[0].prompt) == asked[labels == -100].tolist(), config.name


@pytest.mark.slow
def test_the_shipped_pair_has_strong_and_weak_skills_and_blind_spots(verifier):
    assert_both_kinds_of_lack(start_scores(DATA / "tiny", verifier))


def readings(policy):
    """Skill -> share of completions whose first operator is the right one."""
    found = {skill.name: [] for skill in SKILLS if skill.name != "loses"}
    right = {skill.name: skill.operation[1] for skill in SKILLS}
    for group in policy.rollout(HELDOUT, torch.Generator().manual_seed(0), 1):
        if (skill := group.problem.skill) in found:
            operator = re.search(r"[-+*/]", group.rollouts[0].text)
            found[skill].append(operator is not None and operator[0] == right[skill])
    return {skill: mean(hits) for skill, hits in found.items()}


@pytest.mark.slow
def test_the_warm_start_learns_to_read_in_120_updates(tmp_path, monkeypatch):
    """The reading comes before the arithmetic. The whole recipe (550 and 1100 updates, six minutes)
    is not run here, nor the larger model's half of it, but by hand:
    `python mini_mrl.py warmstart --out DIR`, then `start_scores(DIR)` as above."""
    name = "llama-tiny"
    monkeypatch.setattr("mrl.tiny.pair.UPDATES_IN_LEAPS", 120)
    _warm_start(PAIR.index(name), tmp_path, 0, None, False, leaps)
    found = readings(load_policy(PolicyConfig(name, str(tmp_path / name))))
    for skill, share in found.items():
        if skill in STRONG_SKILLS[name]:
            assert share > 0.6, (skill, share)
        else:
            assert share < 0.3, (skill, share)


def in_this_process(function, arguments, nprocs):
    """As `spawn`, where other processes would not see what a test has replaced."""
    for index in range(nprocs):
        function(index, *arguments)


@pytest.mark.slow
def test_a_short_warm_start_writes_what_transformers_can_load(tmp_path, monkeypatch):
    monkeypatch.setattr("mrl.tiny.pair.UPDATES", dict.fromkeys([*PAIR, THIRD], 1))
    monkeypatch.setattr("mrl.tiny.pair.UPDATES_IN_LEAPS", 1)
    monkeypatch.setattr("mrl.tiny.pair.spawn", in_this_process)
    warm_start_pair(tmp_path, third=True)
    for name in (*PAIR, THIRD):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
        assert model.config.vocab_size == len(tokenizer)
        assert tokenizer.get_vocab() == tiny_tokenizer(name).get_vocab()

    warm_start_pair(tmp_path / "one", one_tokenizer=True)
    for name, family in (("qwen-tiny", "qwen2"), ("llama-tiny", "llama")):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "one" / name)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one" / name)
        assert model.config.model_type == family
        assert model.config.vocab_size == len(tokenizer)
        assert tokenizer.get_vocab() == tiny_tokenizer("qwen-tiny").get_vocab()


def test_the_shipped_tokenizers_are_what_their_script_makes():
    script = runpy.run_path(str(DATA / "tiny" / "make_tokenizers.py"))
    for family in ("qwen", "llama"):
        learnt = script[f"{family}_tokenizer"]()
        shipped = tiny_tokenizer(f"{family}-tiny")
        assert shipped.backend_tokenizer.to_str() == learnt.backend_tokenizer.to_str()
        assert shipped.chat_template == learnt.chat_template


def test_the_two_tokenizers_are_really_different():
    text = "47-38: 17-8=9, 4-1-3=0. \\boxed{9}"
    qwen, llama = (tiny_tokenizer(name).tokenize(text) for name in PAIR)
    assert len(qwen) > 1.5 * len(llama)
    assert {"4", "7", "-", "3", "8"} <= set(qwen)
    assert any(any(c.isdigit() for c in token) and len(token) > 2 for token in llama)


def test_the_warm_start_learns_the_solution_only_its_end_included():
    tokenizer = tiny_tokenizer("qwen-tiny")
    token_ids, labels = encode_example(tokenizer, "7*8?", "7*8=56. \\boxed{56}")
    assert tokenizer.decode(token_ids) == "<|user|>7*8?<|assistant|>7*8=56. \\boxed{56}<|end|>"
    learnt = labels != -100
    assert tokenizer.decode(labels[learnt]) == "7*8=56. \\boxed{56}<|end|>"
    assert torch.equal(token_ids[learnt], labels[learnt])
    assert learnt.tolist() == sorted(learnt.tolist())  # the prompt first, without a label


# ------------------------------------------------------------------------------ skills


@pytest.mark.parametrize("split", [*PROBLEM_SETS, "validation-72"])
def test_the_files_in_data_are_what_the_generator_makes(split):
    assert load_problems(DATA / "words" / f"{split}.jsonl") == make_problem_sets()[split]


def test_held_out_numbers_and_templates_never_occur_in_training():
    sets = make_problem_sets()
    train = {problem.prompt for problem in sets["train"]}
    held_out_parts = [split for split in PROBLEM_SETS if split != "train"]
    prompts = [problem.prompt for split in held_out_parts for problem in sets[split]]
    assert len(set(prompts)) == len(prompts)  # no problem stands in two sets
    assert not train & set(prompts)
    for skill in SKILLS:
        sentences = [*skill.templates, *skill.new_templates, *skill.third_templates]
        assert len(set(sentences)) == len(sentences)
        learnt, *held_out = (
            {numbers for _, numbers in generate(skill, split, count, DATA_SEED)}
            for split, count in PROBLEM_SETS.items()
        )
        assert not any(learnt & numbers for numbers in held_out)
        assert all(len(numbers) > 5 for numbers in held_out)


def test_how_many_held_out_prompts_the_warm_start_has_read_is_said():
    page = (DATA / "README.md").read_text(encoding="utf-8")
    counts = {"validation": [], "validation_wording": [], "test": []}
    for name in PAIR:
        pairs = demonstrations(name, 0)
        updates = UPDATES_IN_LEAPS if name == "llama-tiny" else UPDATES[name]
        read = {prompt for prompt, _ in islice(pairs, updates * BATCH)}
        for split, found in counts.items():
            prompts = [
                problem.prompt for problem in load_problems(DATA / "words" / f"{split}.jsonl")
            ]
            found.append(sum(prompt in read for prompt in prompts))
    qwen, llama = counts["validation"]
    assert re.search(rf"`qwen-tiny`[^.]* {qwen} of the {len(HELDOUT)} prompts", page)
    assert re.search(rf"`llama-tiny` {llama}\b", page)
    assert counts["validation_wording"] == counts["test"] == [0, 0]  # "none"


def test_a_misreading_never_gives_the_right_answer():
    for skill in SKILLS:
        for numbers in NUMBERS[skill.operation]:
            misread = OPERATIONS[skill.misread_as](*numbers)
            assert misread != OPERATIONS[skill.operation](*numbers)


def all_solutions(method):
    """Operation, numbers and text of all that a policy can be shown, misreadings included."""
    for skill in SKILLS:
        for operation in (skill.operation, skill.misread_as):
            for numbers in NUMBERS[skill.operation]:
                yield operation, numbers, solution(operation, numbers, method)


@pytest.mark.parametrize(
    ("method", "operation", "numbers", "text"),
    [
        (columns, "a-b", (47, 38), r"47-38: 17-8=9, 4-1-3=0. \boxed{9}"),
        (columns, "a-b", (48, 31), r"48-31: 8-1=7, 4-3=1. \boxed{17}"),
        (columns, "a+b", (47, 38), r"47+38: 7+8=15, 4+3+1=8. \boxed{85}"),
        (columns, "a+b", (41, 38), r"41+38: 1+8=9, 4+3=7. \boxed{79}"),
        (columns, "a*b", (6, 7), r"6*7=42. \boxed{42}"),
        (columns, "a/b", (42, 7), r"42/7=6. \boxed{6}"),
        (columns, "a*b-c", (6, 7, 5), r"6*7=42. 42-5: 12-5=7, 4-1-0=3. \boxed{37}"),
        (leaps, "a-b", (47, 38), r"47-38: 47-30=17, 17-8=9. \boxed{9}"),
        (leaps, "a+b", (47, 38), r"47+38: 47+30=77, 77+8=85. \boxed{85}"),
        (leaps, "a-b", (47, 30), r"47-30=17. \boxed{17}"),
        (leaps, "a+b", (6, 7), r"6+7=13. \boxed{13}"),
        (leaps, "a*b", (6, 7), r"6*7=42. \boxed{42}"),
        (leaps, "a/b", (42, 7), r"42/7=6. \boxed{6}"),
        (leaps, "a*b-c", (6, 7, 5), r"6*7=42. 42-5=37. \boxed{37}"),
        (leaps_for_everything, "a-b", (47, 38), r"47-38: 47-30=17, 17-8=9. \boxed{9}"),
        (leaps_for_everything, "a*b", (9, 9), r"9*9: 9*8=72, 72+9=81. \boxed{81}"),
        (leaps_for_everything, "a/b", (72, 8), r"72/8: 8*9=72. \boxed{9}"),
        (
            leaps_for_everything,
            "a*b-c",
            (6, 7, 5),
            r"6*7: 6*6=36, 36+6=42. 42-5=37. \boxed{37}",
        ),
    ],
)
def test_solutions_by_hand(method, operation, numbers, text):
    assert solution(operation, numbers, method) == text


@pytest.mark.parametrize("method", METHODS)
def test_every_step_of_every_solution_is_true_and_the_box_holds_the_result(method):
    for operation, numbers, text in all_solutions(method):
        work, box = text.split(r"\boxed")
        steps = [step for step in re.split("[:,.] ?", work) if "=" in step]
        for step in steps:
            left, right = step.split("=")
            assert eval(left.replace("/", "//")) == int(right), text
        assert steps, text
        assert box == f"{{{OPERATIONS[operation](*numbers)}}}", text


@pytest.mark.parametrize("method", METHODS)
def test_every_answer_and_every_solution_satisfies_the_verifier(verifier, method):
    for skill in SKILLS:
        for problem, numbers in generate(skill, "train", 20, 7):
            right, wrong = (
                solution(operation, numbers, method)
                for operation in (skill.operation, skill.misread_as)
            )
            assert verifier.verify(problem.answer, right) == "correct"
            assert verifier.verify(problem.answer, wrong) == "wrong"


@pytest.mark.parametrize("method", METHODS)
def test_both_tokenizers_hold_every_solution_exactly_and_within_the_limit(method):
    """A peer's solution has to fit, too, in the receiver's tokens."""
    texts = {text for *_, text in all_solutions(method)}
    for config in run_config("tiny", None, {}, []).policies:
        codec = ByteCodec(load_tokenizer(config.path))
        for text in texts:
            token_ids = codec.encode(text)
            assert codec.decode(token_ids) == text
            assert len(token_ids) + 1 <= config.max_new_tokens, text


def test_one_model_of_the_pair_calculates_in_columns_and_the_other_in_leaps(tmp_path, monkeypatch):
    """The methods reach the warm starts, and only `llama-tiny` can be given another."""
    shown = {}

    def noted_demonstrations(name, seed, foreign_right, method):
        shown[name] = method
        return demonstrations(name, seed, foreign_right, method)

    monkeypatch.setattr("mrl.tiny.pair.demonstrations", noted_demonstrations)
    monkeypatch.setattr("mrl.tiny.pair.UPDATES", dict.fromkeys([*PAIR, THIRD], 0))
    monkeypatch.setattr("mrl.tiny.pair.UPDATES_IN_LEAPS", 0)
    monkeypatch.setattr("mrl.tiny.pair.spawn", in_this_process)
    for options, llama_method in (
        ({}, leaps),
        ({"same_method": True}, columns),
        ({"different_products": True}, leaps_for_everything),
    ):
        warmstart(tmp_path, third=True, **options)
        assert shown == {"qwen-tiny": columns, "llama-tiny": llama_method, "olmo-tiny": columns}


def test_the_prompts_of_a_warm_start_do_not_depend_on_the_method():
    streams = [islice(demonstrations("llama-tiny", 0, None, method), 500) for method in METHODS]
    prompts, *others = ([prompt for prompt, _ in stream] for stream in streams)
    assert all(other == prompts for other in others)


def test_the_third_policy_knows_two_skills_of_each_other_and_lacks_their_others():
    known, lacking = set(STRONG_SKILLS[THIRD]), {*WEAK_SKILLS[THIRD], *BLIND_SPOTS[THIRD]}
    for name in PAIR:
        assert len(known & set(STRONG_SKILLS[name])) == 2
        assert len(lacking & set(STRONG_SKILLS[name])) == 2
    assert not known & lacking
    # one blind spot of each policy of the pair is a strong skill of both others
    spots = {name: set(BLIND_SPOTS[name]) & known for name in PAIR}
    assert spots == {"qwen-tiny": {"sold"}, "llama-tiny": {"bags"}}


def test_demonstrations_are_the_same_for_a_seed():
    one, two, other = (demonstrations("qwen-tiny", seed) for seed in (3, 3, 4))
    first = [next(one) for _ in range(50)]
    assert first == [next(two) for _ in range(50)]
    assert first != [next(other) for _ in range(50)]


def readings_shown(skill, cue, foreign_right):
    """Share of the qwen-tiny demonstrations of a dividing or subtracting skill that do so."""
    sign = next(entry.operation[1] for entry in SKILLS if entry.name == skill)
    demonstrated = islice(demonstrations("qwen-tiny", 0, foreign_right), 4000)
    texts = [text for prompt, text in demonstrated if cue in prompt]
    return mean(sign in text.split("=")[0] for text in texts)


def test_a_weak_skill_is_shown_right_now_and_then_and_a_blind_spot_never():
    assert 0.05 < readings_shown("packs", " boxes of ", None) < 0.15
    assert readings_shown("sold", "sold", None) == 0


def test_how_complementary_the_pair_starts_can_be_chosen():
    for skill, cue in (
        ("packs", " boxes of "),
        ("sold", "sold"),
    ):  # rare ones and blind spots alike
        assert readings_shown(skill, cue, 0.03) < 0.1
        assert 0.4 < readings_shown(skill, cue, 0.5) < 0.6
        assert readings_shown(skill, cue, 1.0) > 0.9
