"""Every assignment: its reference gets full marks, typical wrong solutions do not, and a submission
that crashes, hangs or cheats loses only its own points."""

import json
import random
import re
from pathlib import Path

import pytest

import mini_mrl
from mrl.classroom import ASSIGNMENTS, OUT_OF
from mrl.classroom.grading import assignment_of, grade_all, load_assignment, write_stub
from mrl.classroom.own_mode import draw_pair, solo
from mrl.errors import MrlError

REFERENCES = Path(__file__).parent / "assignments"
CHEATS = {  # for every assignment: what stands in front of the reference, or in its place
    "stops": "raise SystemExit(0)\n",
    "hangs": "while True:\n    pass\n",
    "prints a score": 'print(\'{"points": 10, "out_of": 10}\')\nraise SystemExit(0)\n',
    "does not parse": "def (\n",
    "dies": "import os\nos.kill(os.getpid(), 9)\n",
    "takes all memory": "x = bytearray(64 << 30)\n",
    "fills the disk": "open('x', 'wb').write(bytes(1 << 30))\n",
}
WRONG = {  # assignment -> name -> (what stands in the reference, what stands there instead)
    "advantages": {
        "sample std": ("correction=0", "correction=1"),
        "no std": ("(rewards.std(dim=1, keepdim=True, correction=0) + 1e-6)", "1.0"),
        "other axis": ("rewards.mean(dim=1, keepdim=True)", "rewards.mean(dim=0, keepdim=True)"),
        "all prompts together": ("rewards.mean(dim=1, keepdim=True)", "rewards.mean()"),
        "opposite sign": ("rewards - rewards.mean", "-rewards + rewards.mean"),
        "equal groups not zero": ("scaled.masked_fill(agree, 0.0)", "scaled"),
        "std of all": ("std(dim=1, keepdim=True, correction=0)", "std(correction=0)"),
        "no check": ("rewards.shape[1] < 2", "False"),
        "in place": ("rewards = rewards.float()", "rewards -= 0.5"),
        "float64": ("rewards.float()", "rewards.double()"),
    },
    "align": {
        "only the whole": ("if byte in ends[1]:", "if byte == sum(map(len, source)):"),
        "forgets the last": ("return chunks", "return chunks[:-1]"),
        "stop included": ("(i, j), (k, n)", "(i, j - 1), (k, n - 1)"),
        "letters": ("byte += len(piece)", "byte += len(piece.decode(errors='ignore'))"),
        "no check": ('b"".join(source) != b"".join(receiver)', "False"),
        "sides swapped": ("((i, j), (k, n))", "((k, n), (i, j))"),
        "starts over": ("i, k = j, n", "i, k = 0, 0"),
        "token by token": ("if byte in ends[1]:", "if byte in ends[1] and ends[1][byte] == j:"),
        "quadratic": ("byte += len(piece)", "byte = len(b''.join(side[:number]))"),
    },
    "bug": {
        "untouched": ("advantages.reshape(-1, 1)", "advantages.T.reshape(-1, 1)"),
        "wrong cause": ('"mixed groups"', '"end token"'),
        "no cause": ('"mixed groups"', '""'),
        "one advantage for all": ("advantages.reshape(-1, 1)", "advantages.mean()"),
        "sign": ("-torch.minimum", "torch.minimum"),
        "no clip": ("ratio.clamp(0.8, 1.2)", "ratio"),
        "mean over all tokens": (
            "((losses * mask).sum(dim=1) / lengths).mean()", "(losses * mask).sum() / mask.sum()",
        ),
        "padding counts": ("lengths = mask.sum(dim=1).clamp(min=1)", "lengths = mask.shape[1]"),
        "detached": ("ratio = difference.exp()", "ratio = difference.detach().exp()"),
    },
    "liar": {
        "believes the verdict": ('known[key] == "correct"', 'record.verdict == "correct"'),
        "believes the answer": ("verify(answers[record.prompt_id],", "verify(record.answer,"),
        "forgets nothing known": ("if key not in known:", "if True:"),
        "forgets the prompt": ("(record.prompt_id, record.text, record.finished)", "record.text"),
        "asks about strangers": ("if record.prompt_id not in answers:", "if False:"),
        "what is unchecked holds": (
            "if calls >= budget:\n                continue",
            (
                'if calls >= budget:\n                known[key] = "correct"\n'
                "                kept.append(record)\n                continue"
            ),
        ),
        "one a prompt": ("kept.append(record)", "kept[-1:] = [record]"),
        "backwards": ("return kept", "return kept[::-1]"),
        "not wrong is right": ('known[key] == "correct"', 'known[key] != "wrong"'),
    },
    "sgt": {
        "always": ('group.kind != "all_fail" or not successes', "not successes"),
        "never": ('group.kind != "all_fail"', "True"),
        "where all passed": ('!= "all_fail"', '!= "all_pass"'),
        "the first": ("rng.choice(successes)", "successes[0]"),
        "other chance": ("rng.choice(successes)", "random.choice(successes)"),
        "a peer first": (
            "rng.choice(successes)",
            "(lambda name: rng.choice([s for s in successes if s.source == name]))("
            "rng.choice(sorted({s.source for s in successes})))",
        ),
        "weight 1": ("weight=self.imitation_weight", "weight=1.0"),
        "no end token": ("completion_ids=completion_ids", "completion_ids=completion_ids[:1]"),
        "a policy sample": ('loss="imitation"', 'objective="policy", behavior_logprobs=[0.0] * 9'),
        "no own samples": ("batch.samples += own_samples(receiver, group)", "pass"),
        "refused text": ("if completion_ids is None:", "if False:"),
        "other records": ("consumes = SuccessRecord", "consumes = None"),
        "no source": ("source=success.source", 'source="peer"'),
    },
    "own-mode": {
        "solo": ("consumes = SuccessRecord", "consumes = None"),
        "weight 0": ("weight=0.5", "weight=0.0"),
        "other prompt": ("prompt_ids=group.prompt_ids", "prompt_ids=groups[0].prompt_ids"),
        "unlearns it": ("weight=0.5", "weight=-0.5"),
        "only where all passed": ("sum(group.rewards) > 1", "sum(group.rewards) < 4"),
        "not a number": ("weight=0.5", 'weight=float("nan")'),
        "forgets itself": ("batch.samples += own_samples(receiver, group)", "continue"),
        "samples more": ('name = "mine"', 'name = "mine"\n    rollout_factor = 100'),
        "takes another's": ("rng.choice(successes)", "__import__('mrl.modes.sgt')"),
    },
}  # fmt: skip


def reference(name):
    return (REFERENCES / f"{name}.py").read_text(encoding="utf-8")


def wrong(name, old, new):
    text = reference(name)
    assert text.count(old) == 1, old
    return text.replace(old, new)


def grade(tmp_path, texts, seed=7):
    """Points by name of texts that are handed in together."""
    paths = []
    for number, text in enumerate(texts.values()):
        paths.append(tmp_path / f"{number}.py")
        paths[-1].write_text(text, encoding="utf-8")
    return dict(zip(texts, grade_all(paths, seed), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ASSIGNMENTS if name != "own-mode"])
def test_the_reference_gets_full_marks_and_wrong_solutions_do_not(tmp_path, name):
    assert len(WRONG[name]) >= 8
    texts = {"reference": reference(name)}
    texts |= {key: wrong(name, *change) for key, change in WRONG[name].items()}
    texts["the stub"] = load_assignment(name).STUB
    grades = grade(tmp_path, texts)
    assert grades.pop("reference").points == OUT_OF
    for key, found in grades.items():
        assert found.points < OUT_OF, (key, found)
        assert found.trouble or any(f.points < f.out_of for f in found.findings), key
        print(f"{name:11} {found.points:4g}  {key}")


@pytest.mark.slow
def test_a_mode_of_ones_own(tmp_path):
    texts = {"reference": reference("own-mode")}
    texts |= {key: wrong("own-mode", *change) for key, change in WRONG["own-mode"].items()}
    texts["the stub"] = load_assignment("own-mode").STUB
    grades = grade(tmp_path, texts)
    best = grades.pop("reference")
    assert best.points == OUT_OF
    gained = float(re.search(r"\+([\d.]+) ± ", best.findings[1].text)[1])
    assert gained > 25
    print(f"own-mode      10  reference: {best.findings[1].text}")
    for key, found in grades.items():
        assert found.points < OUT_OF, (key, found)
        print(f"own-mode    {found.points:4g}  {key}")


def test_who_crashes_hangs_or_cheats_loses_only_the_own_points(tmp_path, monkeypatch):
    module = load_assignment("advantages")
    monkeypatch.setattr(module, "LIMIT_S", 2.0)
    honest = reference("advantages")
    texts = {}
    for key, cheat in CHEATS.items():
        texts[key] = f'ASSIGNMENT = "advantages"\n{cheat}'
        texts[f"honest beside {key}"] = honest
    texts["patches the checker"] = honest + (
        "\nimport mrl.classroom.advantages as checker\n"
        "checker.expected = lambda rewards: rewards\nchecker.check = None\n"
        "def advantages(rewards):\n    return rewards\n"
    )
    texts["imports the answer"] = (
        'ASSIGNMENT = "advantages"\nfrom mrl.advantages import group_advantages as advantages\n'
    )
    grades = grade(tmp_path, texts)
    for key, found in grades.items():
        if key.startswith("honest"):
            assert found.points == OUT_OF, (key, found)
        else:
            assert found.points <= 2, (key, found)
    assert "holds the answer" in grades["imports the answer"].trouble
    assert "stopped after 2 s" in grades["hangs"].trouble
    assert '"points": 10' in grades["prints a score"].output


def test_hidden_cases_differ_by_seed_and_are_the_same_for_one_seed():
    assert draw_pair(random.Random(1), True)[0].model.logits.tolist() != (
        draw_pair(random.Random(2), True)[0].model.logits.tolist()
    )
    assert solo.__wrapped__(3, True) == solo.__wrapped__(3, True)


def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert mini_mrl.main(["assignment", "list"]) == 0
    assert all(name in capsys.readouterr().out for name in ["own-mode"])
    assert mini_mrl.main(["assignment", "start", "bug"]) == 0
    assert (tmp_path / "bug-curves.png").read_bytes().startswith(b"\x89PNG")
    assert mini_mrl.main(["assignment", "start", "bug"]) == 2  # it never overwrites
    assert "is there already" in capsys.readouterr().err
    assert assignment_of(tmp_path / "bug.py") == "bug"
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "ann.py").write_text(reference("advantages"))
    (tmp_path / "class" / "bob.py").write_text("no python")
    assert mini_mrl.main(["assignment", "grade", "class", "--json", "--seed", "1"]) == 0
    ann, bob = map(json.loads, capsys.readouterr().out.splitlines())
    assert (ann["file"], ann["points"], ann["out_of"]) == ("class/ann.py", 10, 10)
    assert bob["points"] == 0
    assert "class/bob.py:1: is no Python" in bob["trouble"]
    assert mini_mrl.main(["assignment", "check", "class/ann.py", "--seed", "1"]) == 0
    assert "10 of 10 points" in capsys.readouterr().out
    assert mini_mrl.main(["assignment", "check", "nobody.py"]) == 2
    assert mini_mrl.main(["assignment", "start", "nothing"]) == 2


def test_a_stub_says_its_contract_and_names_its_command(tmp_path):
    for name in ASSIGNMENTS:
        path, *_ = write_stub(name, tmp_path / name)
        text = path.read_text(encoding="utf-8")
        assert f"assignment check {path.name}" in text
        assert assignment_of(path) == name
    with pytest.raises(MrlError, match="no line `ASSIGNMENT"):
        assignment_of(Path(__file__))
