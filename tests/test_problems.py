import json

import pytest

from mrl.errors import MrlError
from mrl.run.problems import load_problems
from mrl.samples import problems_of_step
from mrl.settings.read import system_prompt_of
from mrl.tiny.skills import SKILLS, generate
from tests.sentences import names_it

PROBLEMS = [problem for skill in SKILLS for problem, _ in generate(skill, "train", 4, 0)]


def test_an_epoch_shows_every_problem_once_and_the_next_is_shuffled_again():
    epochs = []
    for first in (1, 10):
        steps = [problems_of_step(PROBLEMS, step, 4, seed=0) for step in range(first, first + 9)]
        epochs.append([problem.id for step in steps for problem in step])
        assert sorted(epochs[-1]) == sorted(problem.id for problem in PROBLEMS)
    assert epochs[0] != epochs[1]
    assert problems_of_step(PROBLEMS, 3, 4, 0) == problems_of_step(PROBLEMS, 3, 4, 0)
    assert problems_of_step(PROBLEMS, 3, 4, 0) != problems_of_step(PROBLEMS, 3, 4, 1)


def test_a_step_never_holds_a_problem_twice():
    for step in range(1, 30):
        problems = problems_of_step(PROBLEMS, step, 7, seed=0)
        assert len({problem.id for problem in problems}) == 7


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_loading_fills_in_id_and_skill_and_takes_whole_numbers(tmp_path):
    path = write(tmp_path / "p.jsonl", '{"prompt": "1+1?", "answer": 2}', "", '{"prompt": "x", '
                 '"answer": "3", "id": "q"}')  # fmt: skip
    one, two = load_problems(path)
    assert (one.id, one.answer, one.skill) == ("1", "2", "all")
    assert (two.id, two.answer, two.skill) == ("q", "3", "all")
    (three,) = load_problems(write(path, '{"prompt": "x", "answer": "3", "id": "", "skill": ""}'))
    assert (three.id, three.skill) == ("1", "all")


def test_a_skill_is_one_line_and_never_the_name_of_the_mean(tmp_path):
    lines = [json.dumps({"prompt": "x", "answer": "1", "skill": " two\nlines "})]
    path = write(tmp_path / "p.jsonl", *lines)
    assert load_problems(path)[0].skill == "two lines"
    for unnamed in (
        '{"prompt": "y", "answer": "1"}',
        '{"prompt": "y", "answer": "1", "skill": "all"}',
    ):
        with pytest.raises(MrlError, match="'all'"):
            load_problems(write(path, *lines, unnamed))


@pytest.mark.parametrize(
    ("lines", "place", "part"),
    [
        (["{"], ":1", "JSON"),
        (['{"prompt": "a", "answer": "1"}', "nonsense"], ":2", "JSON"),
        (["[1]"], ":1", "JSON list"),
        (['{"answer": "1"}'], ":1", "prompt answer"),
        (['{"prompt": "a"}'], ":1", "answer prompt"),
        (['{"prompt": "a", "answer": 1.5}'], ":1", "answer 1.5"),
        (['{"prompt": "a", "answer": "1", "id": 7}'], ":1", "id 7"),
        (['{"prompt": "a", "answer": "2024-05-01"}'], ":1", "2024-05-01 judge=FILE"),
        (['{"prompt": "a", "answer": true}'], ":1", "answer True"),
        (['{"prompt": " ", "answer": "1"}'], ":1", "prompt"),
        (['{"prompt": "a", "answer": "1", "skill": 3}'], ":1", "skill 3"),
        (['{"prompt": "a", "answer": "1", "id": " "}'], ":1", "id"),
        (['{"prompt": "a", "answer": ' + "9" * 5000 + "}"], ":1", "JSON"),
        (['{"prompt": "a", "answer": "1", "id": "x"}'] * 2, ":2", "id x"),
        ([""], "", "JSON"),
        ([json.dumps({"prompt": "a", "answer": r"\frac{"})], ":1", r"\frac{"),
    ],
)
def test_a_broken_problem_file_is_refused_with_its_line(tmp_path, verifier, lines, place, part):
    path = write(tmp_path / "p.jsonl", *lines)
    with pytest.raises(MrlError) as caught:
        load_problems(path, verifier.check_answer)
    assert str(caught.value).startswith(f"{path}{place}")
    assert names_it(str(caught.value), part)


def test_all_lines_with_a_fault_are_named_in_one_go(tmp_path, verifier):
    good = '{"prompt": "a", "answer": "1"}'
    path = write(tmp_path / "p.jsonl", good, "{", '{"prompt": "a", "answer": "12 eggs"}', good,
                 '{"prompt": "a"}', '{"prompt": "a", "answer": "101_2"}')  # fmt: skip
    with pytest.raises(MrlError) as caught:
        load_problems(path, verifier.check_answer)
    message = str(caught.value)
    assert [n for n in range(1, 7) if f"{path}:{n}:" in message] == [2, 3, 5, 6]
    assert "'12 eggs'" in message and "'101_3'" in message


def test_of_many_lines_with_a_fault_the_first_are_named_and_all_are_counted(tmp_path):
    path = write(tmp_path / "p.jsonl", *["nonsense"] * 57)
    with pytest.raises(MrlError) as caught:
        load_problems(path)
    assert f"{path}:20:" in str(caught.value) and f"{path}:21:" not in str(caught.value)
    assert "57" in str(caught.value)


def test_equal_answers_are_checked_once(tmp_path):
    asked = []
    path = write(tmp_path / "p.jsonl", *['{"prompt": "a", "answer": "1/2"}'] * 9)
    assert len(load_problems(path, lambda answer: asked.append(answer) or True)) == 9
    assert asked == ["1/2"]


def test_one_backslash_before_a_command_of_latex_is_refused(tmp_path, verifier):
    path = write(tmp_path / "p.jsonl", r'{"prompt": "a", "answer": "\theta"}',
                 r'{"prompt": "Derive \frac{x}{2}", "answer": "1"}',
                 r'{"prompt": "two\nlines and a\ttab", "answer": "\\theta"}')  # fmt: skip
    with pytest.raises(MrlError) as caught:
        load_problems(path, verifier.check_answer)
    message = str(caught.value)
    assert f"{path}:1:" in message and "TAB" in message
    assert f"{path}:2:" in message and "form feed" in message
    assert f"{path}:3:" not in message


def test_a_missing_file_and_a_binary_file_are_refused(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(OSError, match=str(path)):
            load_problems(path)
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MrlError, match="not UTF-8"):
        load_problems(tmp_path / "b.jsonl")


def test_a_byte_order_mark_and_answers_with_one_sign_are_read(tmp_path, verifier):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "answer": "3-5"}\n', encoding="utf-8-sig")
    (problem,) = load_problems(path, verifier.check_answer)
    assert (problem.prompt, problem.answer) == ("a", "3-5")


def test_a_system_prompt_may_lie_beside_the_problems(tmp_path):
    train = tmp_path / "train.jsonl"
    assert system_prompt_of(train) == ""
    (tmp_path / "system_prompt.txt").write_text("Box it.\n")
    assert system_prompt_of(train) == "Box it."
