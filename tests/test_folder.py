"""A folder between programs: what crosses, and that nothing in it can do harm."""

import json
import os
import threading
import time
from dataclasses import replace

import pytest

import mini_mrl
from mini_mrl import train_step
from mrl.config import DATA
from mrl.errors import MrlError, RunFailed
from mrl.exchange_folder import LONGEST_LINE, Folder, question_hash
from mrl.placement import Allocation
from mrl.records import RolloutRecord, validation_error
from mrl.run.problems import load_problems
from mrl.samples import Problem
from mrl.settings.read import make_mode
from mrl.team import Team
from tests.end_to_end.small_run import HERE, NAMES, SMALL, assert_same_run, lines, small, stop_after
from tests.fakes import PROBLEMS as TRAINED
from tests.fakes import success
from tests.test_records import ROLLOUT

QWEN, LLAMA = (str(DATA / "tiny" / name) for name in NAMES)
PROBLEMS = [Problem("p", "6*2?", "12"), Problem("q", "9-4?", "5")]


@pytest.fixture
def folder(tmp_path):
    opened = []

    def make(*own, problems=PROBLEMS, **settings):
        made = Folder(tmp_path, own, problems, **settings)
        for name in own:
            made.open(name)
        opened.append(made)
        return made

    yield make
    for made in opened:
        made.close()


def texts(folder, problem=PROBLEMS[0]):
    return [record.text for record in folder.records_about([problem])]


def line(**fields):
    entry = {"format": 1, "kind": "success", "question": question_hash("6*2?"), "text": "12"}
    return json.dumps(entry | fields).encode() + b"\n"


def test_a_record_crosses_whole_under_the_readers_own_id(folder):
    writer = folder("a")
    records = [success("p", "\\boxed{12} é", "a"), ROLLOUT]
    writer.publish("a", records, step=1)
    reader = folder("b", problems=[Problem("7", "6*2?", "12")])
    reader.read()

    mine = list(reader.records_about(reader_problems := [Problem("7", "6*2?", "12")]))
    assert [(record.prompt_id, record.source) for record in mine] == [("7", "a")] * 2
    assert mine[0].text == "\\boxed{12} é" and mine[0].token_lengths == records[0].token_lengths
    assert isinstance(mine[1], RolloutRecord) and mine[1].logprobs == ROLLOUT.logprobs
    assert [validation_error(record) for record in mine] == [None, None]
    assert not list(writer.records_about(reader_problems))  # nobody reads what is its own


def test_a_script_needs_only_the_text_of_a_solution(folder, tmp_path):
    (tmp_path / "script.jsonl").write_bytes(line(text="é 12", source="somebody else"))
    reader = folder("b")
    reader.read()
    [record] = reader.records_about(PROBLEMS)
    assert (record.source, record.finished, record.answer) == ("script", True, "12")
    assert record.token_lengths == (5,) and validation_error(record) is None


def test_the_newest_records_of_each_source_are_kept(folder, tmp_path):
    (tmp_path / "z.jsonl").write_bytes(b"".join(line(text=str(i)) for i in range(5)))
    (tmp_path / "a.jsonl").write_bytes(line(text="from a"))
    reader = folder("b", newest=2)
    reader.read()
    assert texts(reader) == ["from a", "3", "4"]


def test_a_half_written_line_is_read_when_it_is_complete(folder, tmp_path):
    whole = line(text="late")
    (tmp_path / "a.jsonl").write_bytes(line() + whole[:20])
    reader = folder("b")
    reader.read()
    assert texts(reader) == ["12"]
    (tmp_path / "a.jsonl").write_bytes(line() + whole)
    reader.read()
    assert texts(reader) == ["12", "late"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"garbage\n", "not_a_record"),
        (b"\xff\xfe\n", "not_a_record"),
        (b"[1]\n", "not_a_record"),
        (b"[" * 60_000 + b"\n", "not_a_record"),
        (b"x" * (2 * LONGEST_LINE) + b"\n", "not_a_record"),
        (line(format=2), "unknown_format"),
        (line(kind="rewards"), "not_a_record"),
        (line(question="0" * 16), "unknown_question"),
        (line(question=["x"]), "unknown_question"),
        (line(text=5), "not_a_record"),
        (line(text=None), "not_a_record"),
        (line(version=True), "not_a_record"),
        (line(token_lengths=[1, "1"]), "not_a_record"),
        (line(finished=1), "not_a_record"),
        (line(kind="rollout"), "not_a_record"),
    ],
)
def test_a_bad_line_is_counted_and_the_next_one_is_read(folder, tmp_path, bad, reason):
    (tmp_path / "a.jsonl").write_bytes(bad + line(text="good"))
    reader = folder("b")
    reader.read()
    assert texts(reader) == ["good"]
    counts = reader.take_counts()
    assert counts[f"folder/refused/{reason}"] >= 1 and counts["folder/records"] == 1
    assert not reader.take_counts()


@pytest.mark.parametrize("fields", [{"text": "\ud800"}, {"token_lengths": [7]}, {"verdict": "no"}])
def test_what_has_the_right_form_and_lies_is_refused_by_validation(folder, tmp_path, fields):
    (tmp_path / "a.jsonl").write_bytes(line(**fields))
    reader = folder("b")
    reader.read()
    [record] = reader.records_about(PROBLEMS)
    assert validation_error(record)


def test_links_pipes_and_folders_are_not_read(folder, tmp_path):
    target = tmp_path / "elsewhere"
    target.write_bytes(line())
    (tmp_path / "link.jsonl").symlink_to(target)
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    reader = folder("b")
    reader.read()
    assert not texts(reader)
    assert reader.take_counts() == {"folder/unreadable_files": 3}


def test_a_file_that_its_writer_cuts_back_is_not_read_twice(folder, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(text="1") + line(text="2"))
    reader = folder("b")
    reader.read()
    path.write_bytes(line(text="1"))
    reader.read()
    path.write_bytes(line(text="1") + line(text="3"))
    reader.read()
    assert texts(reader) == ["1", "2", "3"]
    assert reader.take_counts()["folder/cut_back"] == 1


def test_a_deleted_folder_ends_the_run_with_a_sentence_and_reading_goes_on(folder, tmp_path):
    both = folder("a")
    both.publish("a", [], step=1)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(RunFailed, match=r"a\.jsonl"):
        both.publish("a", [], step=2)
    tmp_path.rmdir()
    both.read()


def test_two_programs_cannot_publish_under_one_name(folder, tmp_path):
    writer = folder("a")
    with pytest.raises(MrlError, match=r"a\.jsonl"):
        folder("a")
    writer.publish("a", [success("p", source="a")], step=1)
    writer.close()
    with pytest.raises(MrlError, match=r"a\.jsonl"):  # its run has ended
        folder("a")


def test_a_resumed_run_cuts_its_file_back_and_has_read_what_it_had_read(folder, tmp_path):
    first = folder("a")
    (tmp_path / "z.jsonl").write_bytes(line(text="early"))
    first.read()
    first.publish("a", [success("p", source="a")], step=1)
    state, size = first.state("a"), (tmp_path / "a.jsonl").stat().st_size
    first.publish("a", [success("q", source="a")], step=2)
    first.close()
    with (tmp_path / "z.jsonl").open("ab") as file:
        file.write(line(text="late"))

    again = Folder(tmp_path, ["a"], PROBLEMS)
    assert again.open("a", state["written"])
    again.restore(state["read"])
    assert (tmp_path / "a.jsonl").stat().st_size == size
    assert texts(again) == ["early"] and not again.take_counts()
    again.read()
    assert texts(again) == ["early", "late"]
    again.close()

    os.truncate(tmp_path / "a.jsonl", 5)
    assert not again.open("a", state["written"])
    again.close()


def test_a_peer_that_is_behind_is_waited_for_once(folder):
    writer = folder("a")
    writer.publish("a", [], step=1)
    reader = folder("b", wait_s=30)
    reader.read(step=1)  # nobody is behind

    def publish_late():
        time.sleep(0.3)
        writer.publish("a", [success("p", "late", "a")], step=2)

    thread = threading.Thread(target=publish_late)
    thread.start()
    reader.read(step=2)
    thread.join()
    assert texts(reader) == ["late"]

    reader.wait_s = 0.2
    start = time.monotonic()
    reader.read(step=3)  # in vain
    assert time.monotonic() - start >= 0.2
    reader.wait_s = 30
    start = time.monotonic()
    reader.read(step=4)  # its file has not grown
    assert time.monotonic() - start < 5


# ------------------------------------------------------------------------------ in a step, in a run


def solutions_of(problems, text="the answer is \\boxed{{{}}}", **fields):
    """The lines of a file that holds a solution of each problem."""
    lines = []
    for problem in problems:
        question = question_hash(problem.prompt)
        lines.append(line(question=question, text=text.format(problem.answer), **fields))
    return b"".join(lines)


def team_of_one(make_policy, verifier, folder, **fields):
    policy = make_policy(group_size=4, max_new_tokens=48)
    shared = Folder(folder, [policy.name], TRAINED)
    shared.open(policy.name)
    allocation = Allocation([policy], [policy.name])
    modes = {policy.name: make_mode("sgt", {})}
    about = {"prompts_per_step": 3, "folder": shared} | fields
    return Team([policy], modes, TRAINED, verifier, allocation, **about)


def test_a_team_of_one_imitates_what_a_script_wrote(make_policy, verifier, tmp_path):
    (tmp_path / "script.jsonl").write_bytes(solutions_of(TRAINED))
    team = team_of_one(make_policy, verifier, tmp_path)
    [result] = train_step(team, 1).values()
    assert len(result.rescues) == 3  # a policy of random weights solves nothing
    assert {record.source for _, record in result.rescues} == {"script"}
    team.folder.close()


@pytest.mark.parametrize("trust", ["verify", "claim"])
def test_a_wrong_solution_in_the_folder_is_never_imitated(make_policy, verifier, tmp_path, trust):
    wrong = [replace(problem, answer="77777") for problem in TRAINED]
    (tmp_path / "liar.jsonl").write_bytes(solutions_of(wrong))
    team = team_of_one(make_policy, verifier, tmp_path, trust=trust)
    [result] = train_step(team, 1).values()
    assert not result.imitated
    traffic = team.exchange.take_traffic("qwen-tiny")
    assert traffic["exchange/not_confirmed"] == traffic["exchange/received_records"] == 3
    team.folder.close()


def test_two_runs_meet_in_a_folder(place):
    (place / "worked.jsonl").write_bytes(b"")  # the folder may hold what others write later
    first = ["--mode", "sgt", "--steps", "2", "--set", "exchange=shared"]
    both = [*SMALL, *HERE, "--plain", *first]
    assert mini_mrl.main([*both, "--pair", QWEN, "--set", "name=a"]) == 0
    assert mini_mrl.main([*both, "--pair", LLAMA, "--set", "name=b"]) == 0
    written = lines("shared/qwen-tiny.jsonl")
    assert [entry["step"] for entry in written if entry["kind"] == "step"] == [1, 2]
    kept = [entry for entry in written if entry["kind"] == "success"]
    read = lines("runs/b/metrics.jsonl")
    assert sum(entry.get("folder/records", 0) for entry in read) == len(kept) > 0
    assert sum(entry["exchange/received_records"] for entry in read) > 0
    alone = lines("runs/a/metrics.jsonl")
    assert sum(entry["exchange/received_records"] for entry in alone) == 0

    # the same name again, and a mode that takes no completions
    assert mini_mrl.main([*both, "--pair", QWEN, "--set", "name=c"]) == 2
    assert not (place / "runs" / "c").exists()
    assert mini_mrl.main([*both, "--pair", "tiny", "--mode", "xgrpo", "--set", "exchange=x"]) == 2


def test_the_log_of_a_run_becomes_a_teacher(place):
    assert small("--mode", "sgt", "--steps", "2", "--set", "name=teacher") == 0
    assert mini_mrl.main(["exchange", "runs/teacher", "shared"]) == 0
    logged = lines("runs/teacher/exchange.jsonl")
    copied = [*lines("shared/qwen-tiny.jsonl"), *lines("shared/llama-tiny.jsonl")]
    assert sorted(entry["text"] for entry in copied) == sorted(entry["text"] for entry in logged)

    problems = load_problems(place / "train.jsonl")
    folder = Folder("shared", ["learner"], problems, newest=100)
    folder.read()
    read = [record.text for record in folder.records_about(problems)]
    assert sorted(read) == sorted(entry["text"] for entry in logged)
    assert mini_mrl.main(["exchange", "runs/teacher", "shared"]) == 2  # the files exist


@pytest.mark.slow
def test_with_a_folder_that_does_not_change_a_resumed_run_is_exact(place, monkeypatch):
    problems = load_problems(place / "train.jsonl")
    for name in ("one", "two"):
        (place / name).mkdir()
        (place / name / "script.jsonl").write_bytes(solutions_of(problems))
    command = ["--mode", "sgt", "--steps", "4", "--seed", "3"]
    assert small(*command, "--set", "exchange=one", "--set", "name=whole") == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        small(*command, "--set", "exchange=two", "--set", "name=stopped")
    with (place / "two" / "qwen-tiny.jsonl").open("ab") as file:
        file.write(b'{"half a line')
    assert mini_mrl.main(["resume", "runs/stopped", "--plain"]) == 0
    assert_same_run("runs/whole", "runs/stopped", 4)
    for name in ("qwen-tiny", "llama-tiny"):
        one, two = ((place / where / f"{name}.jsonl").read_bytes() for where in ("one", "two"))
        assert one == two
