import json
import random

import pytest

from mrl.config import DATA
from mrl.errors import MrlError
from mrl.lab import commands
from mrl.tiny.pair import FOREIGN_RIGHT, OWN_SKILLS, demonstrations, right_share
from mrl.tiny.skills import (
    DATA_SEED,
    SKILLS,
    evaluate,
    generate,
    make_problem_sets,
    number_choices,
    solution,
    split_numbers,
)


@pytest.mark.parametrize("part", ["train", "heldout", "newtemplates"])
def test_the_files_in_data_are_what_the_generator_makes(part):
    assert load_problems(DATA / "words" / f"{part}.jsonl") == make_problem_sets()[part]


def test_held_out_numbers_and_templates_never_occur_in_training():
    sets = make_problem_sets()
    train = {problem.prompt for problem in sets["train"]}
    assert not train & {p.prompt for part in ("heldout", "newtemplates") for p in sets[part]}
    for skill in SKILLS:
        learnt, held_out = split_numbers(skill, DATA_SEED)
        assert not set(learnt) & set(held_out)
        assert len(held_out) >= 12
        assert not set(skill.templates) & set(skill.new_templates)
        for part, allowed in (("train", learnt), ("heldout", held_out), ("newtemplates", held_out)):
            assert all(numbers in allowed for _, numbers in generate(skill, part, 15, DATA_SEED))


def test_a_misreading_never_gives_the_right_answer():
    for skill in SKILLS:
        for numbers in number_choices(skill.operation):
            assert evaluate(skill.misread_as, numbers) != evaluate(skill.operation, numbers)


def test_operations_by_hand():
    assert evaluate("a+b", (47, 38)) == 85
    assert evaluate("a-b", (47, 38)) == 9
    assert evaluate("a*b", (6, 7)) == 42
    assert evaluate("a/b", (42, 7)) == 6
    assert evaluate("a*b-c", (6, 7, 5)) == 37
    with pytest.raises(ValueError, match="unknown"):
        evaluate("a**b", (2, 3))


@pytest.mark.parametrize(
    ("operation", "numbers", "text"),
    [
        ("a-b", (47, 38), r"47-38: 17-8=9, 4-1-3=0. \boxed{9}"),
        ("a-b", (48, 31), r"48-31: 8-1=7, 4-3=1. \boxed{17}"),
        ("a+b", (47, 38), r"47+38: 7+8=15, 4+3+1=8. \boxed{85}"),
        ("a+b", (41, 38), r"41+38: 1+8=9, 4+3=7. \boxed{79}"),
        ("a*b", (6, 7), r"6*7=42. \boxed{42}"),
        ("a/b", (42, 7), r"42/7=6. \boxed{6}"),
        ("a*b-c", (6, 7, 5), r"6*7=42. 42-5: 12-5=7, 4-1-0=3. \boxed{37}"),
    ],
)
def test_solutions_by_hand(operation, numbers, text):
    assert solution(operation, numbers) == text


def test_every_step_of_every_solution_is_true():
    for skill in SKILLS:
        for operation in (skill.operation, skill.misread_as):
            for numbers in number_choices(skill.operation):
                work = solution(operation, numbers).split(r"\boxed")[0]
                for part in work.replace(":", ",").replace(".", ",").split(","):
                    if "=" in part:
                        left, right = part.split("=")
                        assert eval(left.replace("/", "//")) == int(right), work


def test_every_answer_and_every_solution_satisfies_the_verifier(verifier):
    for skill in SKILLS:
        for problem, numbers in generate(skill, "train", 20, 7):
            assert verifier.verify(problem.answer, solution(skill.operation, numbers)) == "correct"
            assert verifier.verify(problem.answer, solution(skill.misread_as, numbers)) == "wrong"


def test_every_solution_fits_the_token_limit_in_both_tokenizers(make_policy):
    for name in OWN_SKILLS:
        policy = make_policy(name)
        for skill in SKILLS:
            for numbers in random.Random(0).sample(number_choices(skill.operation), 50):
                token_ids = policy.codec.encode(solution(skill.operation, numbers))
                assert len(token_ids) + 1 <= policy.max_new_tokens


def test_the_pair_starts_with_skills_that_overlap_only_in_part():
    qwen, llama = OWN_SKILLS.values()
    assert not set(qwen) & set(llama)
    named = {skill.name for skill in SKILLS}
    assert named - set(qwen) - set(llama) == {"loses"}  # the two-step skill is nobody's own
    assert all(right_share("qwen-tiny", skill) < 0.2 for skill in SKILLS if skill.name not in qwen)


def test_demonstrations_are_the_same_for_a_seed():
    one, two, other = (demonstrations("qwen-tiny", seed) for seed in (3, 3, 4))
    first = [next(one) for _ in range(50)]
    assert first == [next(two) for _ in range(50)]
    assert first != [next(other) for _ in range(50)]


def test_how_complementary_the_pair_starts_can_be_chosen():
    def shown_right(share):
        """Of the qwen-tiny demonstrations of a skill that is llama-tiny's: `packs` divides."""
        shown = (next(examples) for examples in [demonstrations("qwen-tiny", 0, share)] * 4000)
        packs = [solution for prompt, solution in shown if " boxes of " in prompt]
        return sum("/" in solution.split("=")[0] for solution in packs) / len(packs)

    assert commands.warmstart.__defaults__[-1] == FOREIGN_RIGHT
    assert shown_right(FOREIGN_RIGHT) < 0.1 < 0.4 < shown_right(0.5) < 0.6 < 0.9 < shown_right(1.0)


# ------------------------------------------------------------------------------ loading


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_loading_fills_in_id_and_skill_and_takes_whole_numbers(tmp_path):
    path = write(tmp_path / "p.jsonl", '{"prompt": "1+1?", "answer": 2}', "", '{"prompt": "x", '
                 '"answer": "3", "id": "q", "skill": "s"}')  # fmt: skip
    one, two = load_problems(path)
    assert (one.id, one.answer, one.skill) == ("1", "2", "all")
    assert (two.id, two.answer, two.skill) == ("q", "3", "s")


@pytest.mark.parametrize(
    ("lines", "place", "part"),
    [
        (["{"], ":1", "not JSON"),
        (['{"prompt": "a", "answer": "1"}', "nonsense"], ":2", "not JSON"),
        (["[1]"], ":1", "not a JSON object"),
        (['{"answer": "1"}'], ":1", "`prompt` is missing"),
        (['{"prompt": "a"}'], ":1", "`answer` is missing"),
        (['{"prompt": "a", "answer": 1.5}'], ":1", "`answer`"),
        (['{"prompt": "a", "answer": true}'], ":1", "`answer`"),
        (['{"prompt": " ", "answer": "1"}'], ":1", "`prompt`"),
        (['{"prompt": "a", "answer": "1", "skill": 3}'], ":1", "`skill`"),
        (['{"prompt": "a", "answer": "1", "id": "x"}'] * 2, ":2", "'x' was used before"),
        ([""], "", "holds no problem"),
        ([json.dumps({"prompt": "a", "answer": r"\frac{"})], ":1", "cannot judge"),
    ],
)
def test_a_broken_problem_file_is_refused_with_its_line(tmp_path, verifier, lines, place, part):
    path = write(tmp_path / "p.jsonl", *lines)
    with pytest.raises(MrlError) as caught:
        load_problems(path, verifier.check_answer)
    assert str(caught.value).startswith(f"{path}{place}:")
    assert part in str(caught.value)


def test_a_missing_file_and_a_binary_file_are_refused(tmp_path):
    with pytest.raises(MrlError, match="no such file"):
        load_problems(tmp_path / "none.jsonl")
    with pytest.raises(MrlError, match=r"`python mini_mrl\.py data gsm8k` fetches it"):
        load_problems(tmp_path / "gsm8k" / "train.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MrlError, match="not UTF-8"):
        load_problems(tmp_path / "b.jsonl")
