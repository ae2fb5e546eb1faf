"""Every assignment: right solutions get full points however they are written, typical wrong ones do
not, and a submission that hangs or crashes loses only its own points.

Most submissions are checked in this process. Those that would end it, and a few that show that
`assignment check` itself gives the same, are checked in a process of their own.
"""

import csv
import json
import os
import random
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

import mini_mrl
from mrl.classroom import ASSIGNMENTS, OUT_OF, checking, commands, conftest, letters
from mrl.classroom import test_own_mode as own_mode
from mrl.classroom.checking import Grade, check, start
from mrl.classroom.curves import BUGS, CURVES, drawn
from mrl.errors import MrlError
from mrl.modes.solo import Solo
from mrl.parsing import run_file
from mrl.run.intervals import estimate
from tests.assignments.right import BUFFERS, IDEAS, MODE, RIGHT

REFERENCES = Path(__file__).parent / "assignments"
HEAD = 'ASSIGNMENT = "liar"\n'  # its checks do not need torch, so they start quickly
OWN = """
class Own(Mode):
    name = "own"
    consumes = SuccessRecord
    def training_samples(self, receiver, prompts, rng):
        batch = Solo().training_samples(receiver, prompts, rng)
"""
MEMORY = """
MEMORY = {}
class Memory(Mode):
    name = "memory"
    consumes = SuccessRecord
    off = False
    def training_samples(self, receiver, prompts, rng):
        memory = MEMORY if SHARED else self.__dict__.setdefault("kept", {})
        batch = Solo().training_samples(receiver, prompts, rng)
        for experience in prompts:
            group, records = experience.group, experience.records
            key = tuple(group.prompt_ids)
            own = {tuple(r.completion_ids): r.reward for r in group.rollouts}
            memory.setdefault(key, []).extend(list(ids) for ids in own if own[ids])
            seen = self.__dict__.setdefault("wrong", {}).setdefault(key, set())
            seen |= {ids for ids in own if not own[ids]}
            told = {tuple(receiver.codec.encode(r.text) + [receiver.eos_id]) for r in records}
            self.off = self.off or bool(told & seen)
            if group.outcome == "all_fail" and memory[key]:
                batch.samples.append(TrainingSample(group.prompt_ids, rng.choice(memory[key]),
                                                    loss="imitation", reward=1.0))
        nothing = not any(experience.received for experience in prompts)
        return TrainingBatch() if SULKS(self.off, nothing) else batch
"""
MISHAPS = {  # what stands in a file before its answer -> what is said of it
    "import sys\nsys.exit(0)": "SystemExit: 0",
    "import os\nos._exit(0)": "exit status 0",
    "import os\nos.kill(os.getpid(), 9)": "exit status -9",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)": "stopped after",
    "while True:\n    pass": "stopped after",
    "def f(): f()\nf()": "RecursionError",
    "x = bytearray(64 << 30)": "MemoryError",
    "def (": "SyntaxError: invalid syntax",
    "(" * 5000: "Error",
    "x = '\0'": "null bytes",
    "raise KeyboardInterrupt": "exit status",
    "class E(Exception):\n    def __str__(self): raise E\nraise E": "exit status",
    "raise ValueError('\\x1b[2J\\u202e' * 9)": "raised an error: ValueError: \x1b[2J\u202e",
    "print('\\x1b]0;title\\x07', {'points': 10})": "raised an error: NotImplementedError",
    "print('x' * 10**7)": "raised an error: NotImplementedError",
    "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()": "",
    "import atexit\natexit.register(lambda: 1 / 0)": "",
}
WRONG = {  # assignment -> name -> (what stands in the reference, what stands there instead)
    "advantages": {
        "a small std is none": (
            "(rewards == rewards[:, :1]).all(dim=1, keepdim=True)",
            "rewards.std(dim=1, keepdim=True, correction=0) < 1e-6",
        ),
        "sample std": ("correction=0", "correction=1"),
        "other axis": ("rewards.mean(dim=1, keepdim=True)", "rewards.mean(dim=0, keepdim=True)"),
        "all prompts together": ("rewards.mean(dim=1, keepdim=True)", "rewards.mean()"),
        "opposite sign": ("rewards - rewards.mean", "-rewards + rewards.mean"),
        "equal groups not zero": ("scaled.masked_fill(agree, 0.0)", "scaled"),
        "std of all": ("std(dim=1, keepdim=True, correction=0)", "std(correction=0)"),
        "no check": ("rewards.dim() != 2 or rewards.shape[1] < 2", "False"),
        "more axes": ("rewards.dim() != 2 or rewards.shape[1] < 2", "rewards.shape[-1] < 2"),
        "changes the rewards": ("rewards = rewards.float()", "rewards -= 0.5"),
        "float64": ("rewards.float()", "rewards.double()"),
        "close is equal, numpy's way": (
            "(rewards == rewards[:, :1])", "rewards.isclose(rewards[:, :1])",
        ),
        "other eps": ("+ 1e-6", "+ 1e-8"),
        "large eps": ("+ 1e-6", "+ 1e-5"),
        "a list": ("return scaled.masked_fill(agree, 0.0)",
                   "return scaled.masked_fill(agree, 0.0).tolist()"),
        "a result that is used again": (
            "return scaled.masked_fill(agree, 0.0)",
            "k = advantages.__dict__.setdefault('k', {})\n"
            "    return k.setdefault(rewards.shape, scaled.clone())"
            ".copy_(scaled.masked_fill(agree, 0.0))",
        ),
        "cached by shape": (
            "return scaled.masked_fill(agree, 0.0)",
            "return advantages.__dict__.setdefault(\n"
            "        str(rewards.shape), scaled.masked_fill(agree, 0.0))",
        ),
    },
    "align": {
        "decoded with replace": (
            'b"".join(source) != b"".join(receiver)',
            'b"".join(source).decode(errors="replace")'
            ' != b"".join(receiver).decode(errors="replace")',
        ),
        "decoded": (
            'b"".join(source) != b"".join(receiver)',
            'b"".join(source).decode() != b"".join(receiver).decode()',
        ),
        "only the whole": ("if byte in ends[1]:", "if byte == sum(map(len, source)):"),
        "forgets the last": ("return chunks", "return chunks[:-1]"),
        "stop included": ("(i, j), (k, n)", "(i, j - 1), (k, n - 1)"),
        "letters": ("byte += len(piece)", "byte += len(piece.decode(errors='ignore'))"),
        "no check": ('b"".join(source) != b"".join(receiver)', "False"),
        "sides swapped": ("((i, j), (k, n))", "((k, n), (i, j))"),
        "joins each time": ("byte += len(piece)", "byte = len(b''.join(side[:number]))"),
        "searches a list": ("if byte in ends[1]:", "if byte in list(ends[1]):"),
        "a start and a number": ("(i, j), (k, n)", "(i, j - i), (k, n - k)"),
        "four numbers": ("((i, j), (k, n))", "(i, j, k, n)"),
        "bytes": (
            "((i, j), (k, n)))\n            i, k = j, n",
            "((i, byte), (i, byte)))\n            i = byte",
        ),
        "None for other bytes": ('raise ValueError("not the same bytes")', "return None"),
        "wrong when long": ("return chunks", "return chunks if len(source) < 200 else []"),
        "compares length and last byte": (
            'b"".join(source) != b"".join(receiver)',
            "sum(map(len, source)) != sum(map(len, receiver)) or source and receiver "
            "and source[-1][-1:] != receiver[-1][-1:]",
        ),
    },
    "bug": {
        "untouched": ("advantages.reshape(-1, 1)", "advantages.T.reshape(-1, 1)"),
        "two curves exchanged": ('"A": "sign",\n    "B"', '"B": "sign",\n    "A"'),
        "sign": ("-torch.minimum", "torch.minimum"),
        "no clip": ("ratio.clamp(0.8, 1.2)", "ratio"),
        "sample std": ("correction=0", "correction=1"),
        "no min": ("torch.minimum(ratio * per_row, ratio.clamp(0.8, 1.2) * per_row)",
                   "ratio.clamp(0.8, 1.2) * per_row"),
        "padding counts": ("lengths = mask.sum(dim=1).clamp(min=1)", "lengths = mask.shape[1]"),
        "detached": ("ratio = difference.exp()", "ratio = difference.detach().exp()"),
        "masked by a product": (".masked_fill(~mask, 0.0)", " * mask"),
        "nan for equal groups": ("correction=0) + 1e-6", "correction=0)"),
        "std of rewards that are 0 or 1": (
            "rewards.std(dim=1, keepdim=True, correction=0)",
            "(rewards.mean(1, keepdim=True) * (1 - rewards.mean(1, keepdim=True))).abs().sqrt()",
        ),
        "mask read as lengths": (
            "lengths = mask.sum(dim=1).clamp(min=1)",
            "lengths = mask.sum(dim=1).clamp(min=1)\n"
            "    mask = torch.arange(mask.shape[1]) < lengths[:, None]",
        ),
        "equal groups by luck of rounding": (".masked_fill(all_agree, 0.0)", ""),
        "other eps": ("+ 1e-6", "+ 1e-5"),
        "one cause alone": ("CAUSES = {", "CAUSES = dict(A='sign')\nOTHER = {"),
        "nan loss": ("/ lengths).mean()", "/ lengths).mean() * float('nan')"),
    },
    "liar": {
        "distrusts whom it has caught": (
            "return kept",
            "liars = {record.source for record in records if record not in kept}\n"
            "    return [record for record in kept if record.source not in liars]",
        ),
        "equal records are one": ("return kept", "return list(dict.fromkeys(kept))"),
        "believes the verdict": (
            'known[key] == "correct"', 'record.verdict == "correct" or known[key] == "correct"',
        ),
        "only what claims it": (
            'known[key] == "correct"', 'record.verdict == known[key] == "correct"',
        ),
        "believes the answer": ("verify(answers[record.prompt_id],", "verify(record.answer,"),
        "forgets what is known": ("if key not in known:", "if True:"),
        "forgets the prompt": ("(record.prompt_id, record.text, record.finished)", "record.text"),
        "forgets finished": (
            "(record.prompt_id, record.text, record.finished)", "(record.prompt_id, record.text)",
        ),
        "the index in the key": (
            "(record.prompt_id, record.text, record.finished)",
            "(record.prompt_id, record.text, record.finished, record.index)",
        ),
        "never asks of a cut text": (
            "if record.prompt_id not in answers:",
            "if record.prompt_id not in answers or not record.finished:",
        ),
        "asks about strangers": (
            "if record.prompt_id not in answers:\n            continue",
            "answers.setdefault(record.prompt_id, record.answer)",
        ),
        "what is unchecked holds": (
            "                continue\n            calls",
            '                known[key] = "correct"\n                kept.append(record)\n'
            "                continue\n            calls",
        ),
        "stops at the budget": (
            "                continue\n            calls",
            "                break\n            calls",
        ),
        "one short of the budget": ("if calls >= budget:", "if calls >= budget - 1:"),
        "gives up where not all can be checked": (
            "known, kept, calls = {}, [], 0",
            "known, kept, calls = {}, [], 0\n"
            "    if len({(r.prompt_id, r.text, r.finished) for r in records}) > budget:\n"
            "        return []",
        ),
        "one a prompt": (
            'known[key] == "correct"',
            'known[key] == "correct" and record.prompt_id not in [r.prompt_id for r in kept]',
        ),
        "backwards": ("return kept", "return kept[::-1]"),
        "not wrong is right": ('known[key] == "correct"', 'known[key] != "wrong"'),
        "changes records in place": ("return kept", "records[:] = kept\n    return records"),
        "arguments exchanged": (
            "verify(answers[record.prompt_id], record.text,",
            "verify(record.text, answers[record.prompt_id],",
        ),
        "does not look for strangers": ("if record.prompt_id not in answers:", "if False:"),
    },
    "sgt": {
        "a gate at 30 %": (
            'group.outcome != "all_fail"', "sum(group.rewards) / len(group.rewards) > 0.3",
        ),
        "one of the shortest": (
            "rng.choice(usable)",
            "min(usable, key=lambda s: (len(s.record.text), rng.random()))",
        ),
        "one that is finished": (
            "rng.choice(usable)",
            "rng.choice([s for s in usable if s.record.finished] or usable)",
        ),
        "always": ('group.outcome != "all_fail" or not usable', "not usable"),
        "where all passed": ('!= "all_fail"', '!= "all_pass"'),
        "the first": ("rng.choice(usable)", "usable[0]"),
        "other chance": ("rng.choice(usable)", "random.choice(usable)"),
        "a peer first": (
            "rng.choice(usable)",
            "(lambda name: rng.choice([s for s in usable if s.record.source == name]))("
            "rng.choice(sorted({s.record.source for s in usable})))",
        ),
        "weight 1": ("weight=self.imitation_weight", "weight=1.0"),
        "weight nan": ("weight=self.imitation_weight", 'weight=float("nan")'),
        "no end token": ("received.token_ids", "received.token_ids[:1]"),
        "a policy sample": (
            'loss="imitation"', 'loss="policy", behavior_logprobs=[0.0] * len(received.token_ids)',
        ),
        "text that cannot be used": ("experience.usable", "experience.received"),
        "ends at a text that cannot be used": (
            "            batch.samples += own",
            "            if len(usable) < len(experience.received):\n                break\n"
            "            batch.samples += own",
        ),
        "records by a name": ("consumes = SuccessRecord", 'consumes = "success"'),
        "where mixed": ('!= "all_fail"', '!= "mixed"'),
        "a weight of its own": ("weight=self.imitation_weight", "weight=0.1"),
        "no own samples of a rescue": (
            "            batch.samples += own_samples(receiver, group)\n"
            '            if group.outcome != "all_fail" or not usable:\n',
            '            if group.outcome != "all_fail" or not usable:\n'
            "                batch.samples += own_samples(receiver, group)\n",
        ),
        "no record": ("record=received.record", "record=None"),
        "one rescue a step": (
            'group.outcome != "all_fail"',
            'any(s.loss == "imitation" for s in batch.samples) or group.outcome != "all_fail"',
        ),
        "on another prompt": (
            "prompt_ids=group.prompt_ids", "prompt_ids=experiences[0].group.prompt_ids",
        ),
        "the text of another": (
            "rng.choice(usable)",
            "rng.choice(next(e for e in experiences"
            " if e.usable and not any(e.group.rewards)).usable)",
        ),
        "other advantages": (
            "own_samples(receiver, group)",
            "[__import__('dataclasses').replace(s, advantage=-s.advantage)\n"
            "                              for s in own_samples(receiver, group)]",
        ),
        "duplicates count once": (
            "rng.choice(usable)", "rng.choice(list({s.record.text: s for s in usable}.values()))",
        ),
        "no limit of length": (
            "experience.usable",
            "[type(r)(r.record, receiver.codec.encode(r.record.text) + [receiver.eos_id])\n"
            "                             for r in experience.received if r.record.text.isascii()]",
        ),
    },
    "own-mode": {
        "forgets the prompt": (
            "prompt_ids=group.prompt_ids", "prompt_ids=experiences[0].group.prompt_ids",
        ),
        "unlearns it": ("weight=0.5", "weight=-0.5"),
        "only where all passed": ("sum(group.rewards) > 1", "sum(group.rewards) < 4"),
        "not a number": ("weight=0.5", 'weight=float("nan")'),
        "takes another's": ("rng.choice(usable)", "__import__('mrl.modes.sgt')"),
        "finds another's": ("rng.choice(usable)", "__import__('mrl.modes').modes.SGT"),
    },
}  # fmt: skip
WHOLE = {"align": {"quadratic in a chunk's length": BUFFERS}}  # as WRONG, written out
ONE_CAUSE = {  # (assignment, mistake) -> the least points: one cause costs one part
    ("advantages", "sample std"): 8,
    ("advantages", "a list"): 9,
    ("advantages", "other axis"): 7,
    ("align", "sides swapped"): 8,
    ("align", "forgets the last"): 8,
    ("align", "letters"): 8,
    ("align", "a start and a number"): 8,
    ("align", "four numbers"): 8,
    ("align", "bytes"): 8,
    ("bug", "two curves exchanged"): 8,
    ("liar", "forgets what is known"): 8,
    ("bug", "no clip"): 9,
    ("bug", "equal groups by luck of rounding"): 9,
    ("bug", "sample std"): 8,
    ("bug", "sign"): 8,
    ("liar", "changes records in place"): 8,
    ("liar", "arguments exchanged"): 8,
    ("liar", "distrusts whom it has caught"): 6,
    ("liar", "believes the verdict"): 6,
    ("liar", "believes the answer"): 6,
    ("liar", "equal records are one"): 8,
    ("liar", "one a prompt"): 4,
    ("sgt", "a gate at 30 %"): 8,
    ("bug", "no min"): 9,
    ("liar", "backwards"): 8,
    ("sgt", "weight 1"): 8,
    ("sgt", "always"): 8,
    ("sgt", "where mixed"): 8,
    ("sgt", "where all passed"): 8,
    ("sgt", "records by a name"): 9,
}
TRICKS = {  # for own-mode: what must gain nothing, for it is no sharing
    "solo with 16 updates": MODE + OWN + "        return batch\n    published_updates = 16\n",
    "twice the rollouts": MODE + OWN + "        return batch\n    rollout_factor = 2\n",
    "weights times 100": MODE + OWN + """
        return TrainingBatch([replace(s, weight=100.0) for s in batch.samples])
""",
    "own samples weighted up where a peer says anything": MODE + OWN + """
        seen = {tuple(e.group.prompt_ids) for e in prompts if e.received}
        return TrainingBatch([replace(s, weight=1 + 4 * s.reward * (tuple(s.prompt_ids) in seen))
                              for s in batch.samples])
""",
    "a constant where a peer says anything": MODE + OWN + """
        for e in prompts:
            if e.received:
                batch.samples.append(TrainingSample(e.group.prompt_ids, [0, receiver.eos_id],
                                                    loss="imitation", reward=1.0))
        return batch
""",
    "own successes imitated": MODE + OWN + """
        for e in prompts:
            batch.samples += [TrainingSample(e.group.prompt_ids, r.completion_ids,
                                             loss="imitation", reward=1.0)
                              for r in e.group.rollouts if r.reward]
        return batch
""",
    "own replay": MODE + MEMORY + "SHARED, SULKS = False, lambda off, nothing: False\n",
    "sulks without records, too": MODE + MEMORY
        + "SHARED, SULKS = False, lambda off, nothing: off or nothing\n",
    "a memory of both policies": MODE + MEMORY
        + "SHARED, SULKS = True, lambda off, nothing: False\n",
    "the problem's answer": MODE + OWN + """
        for experience in prompts:
            ids = receiver.codec.encode(experience.group.problem.answer)
        return batch
""",
}  # fmt: skip


def reference(name):
    return (REFERENCES / f"{name}.py").read_text(encoding="utf-8")


def wrong(name, old, new):
    text = reference(name)
    assert text.count(old) == 1, old
    return text.replace(old, new)


def submitted(name, body):
    """A right solution of the table as a file."""
    return f'ASSIGNMENT = "{name}"\nCURVES = 7\nCAUSES = {drawn(7)}\n{body}'


def in_this_process(assignment, cwd, environment):
    """checking.run without a process, which would import torch each time."""
    path, seed = Path(environment["MRL_SUBMISSION"]), environment["MRL_SEED"]
    parts = {}
    for name, test in vars(
        import_module(f"mrl.classroom.test_{assignment}".replace("-", "_"))
    ).items():
        if not name.startswith("test_"):
            continue
        recorded, error = [], None
        try:
            fixtures = {
                "submission": run_file(path, path.read_bytes()),
                "rng": random.Random(f"{seed} {name}"),
                "record_property": lambda *pair, recorded=recorded: recorded.append(pair),
            }
            test(**{key: fixtures[key] for key in signature(test).parameters})
        except (Exception, pytest.fail.Exception) as raised:
            error = raised
        part = conftest.described(test)
        parts[name] = part | conftest.graded(part, error, recorded, str(path))
    Path(environment["MRL_REPORT"]).write_text(json.dumps({"parts": parts, "printed": ""}))
    return "exit status 0"


@pytest.fixture
def grade_apart(tmp_path):
    """A function: grades by name of texts that are handed in together."""

    def graded(texts, seed=7):
        grades = {}
        for number, (name, text) in enumerate(texts.items()):
            path = tmp_path / f"{number}.py"
            path.write_text(text, encoding="utf-8")
            grades[name] = check(path, path.name, seed)
        return grades

    return graded


@pytest.fixture
def grade(grade_apart, monkeypatch):
    """As grade_apart, in this process."""
    monkeypatch.setattr(checking, "run", in_this_process)
    return grade_apart


def words(found: Grade) -> str:
    return " ".join([found.trouble, *(part["message"] for part in found.parts.values())])


@pytest.mark.parametrize("name", [name for name in ASSIGNMENTS if name != "own-mode"])
def test_the_reference_gets_full_points_and_the_stub_does_not(grade, name):
    stub = (checking.HERE / "stubs" / f"{name}.py").read_text()
    found = grade({"reference": reference(name), "stub": stub})
    assert found["reference"].points == OUT_OF, words(found["reference"])
    assert found["stub"].points <= 3


def test_the_hidden_cases_are_those_of_the_seed(grade):
    def case(seed):
        (found,) = grade({"x": submitted("advantages", "advantages = abs")}, seed).values()
        message = found.parts["test_centered"]["message"]
        return message.partition("expected")[0]

    assert case(1) == case(1) != case(2)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_right_solutions_that_are_written_otherwise_get_full_points(grade, name):
    texts = {key: submitted(name, body) for key, body in RIGHT[name].items()}
    for key, found in grade(texts).items():
        assert found.points == OUT_OF, (key, words(found))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ASSIGNMENTS if name != "own-mode"])
def test_wrong_solutions_lose_points_and_are_shown_why(grade, name):
    texts = {key: wrong(name, *change) for key, change in WRONG[name].items()}
    texts |= {key: submitted(name, body) for key, body in WHOLE.get(name, {}).items()}
    grades = grade(texts)
    points = {key: found.points for key, found in grades.items()}
    print(f"{name}: {len(texts)} wrong, {sorted(points.items(), key=lambda item: item[1])}")
    for key, found in grades.items():
        assert ONE_CAUSE.get((name, key), 0) <= found.points < OUT_OF, key
        lost = [part for part in found.parts.values() if part["points"] < part["out_of"]]
        assert all(len(part["message"]) > 20 for part in lost), (key, words(found))


@pytest.fixture
def pairs(monkeypatch):
    """A function that sets how many pairs `own-mode` trains; each pair of `solo` trains once."""
    solo = cache(lambda *seed: letters.train(Solo, *seed))
    monkeypatch.setattr(
        own_mode,
        "train",
        lambda mode, *rest, **named: (
            solo(*rest) if mode is Solo else letters.train(mode, *rest, **named)
        ),
    )

    def set_pairs(number, *, without_interval=False):
        monkeypatch.setattr(own_mode, "PAIRS", number)
        if without_interval:
            mean_only = lambda gains: replace(estimate(gains), half=0.0)  # noqa: E731
            monkeypatch.setattr(own_mode, "estimate", mean_only)

    return set_pairs


def print_points(grades):
    for key, found in grades.items():
        print(f"{found.points:4}  {key}: {words(found)[:90]}")


@pytest.mark.slow
def test_a_mode_of_ones_own_is_judged_by_its_idea(grade, pairs):
    name = "own-mode"
    texts = {key: submitted(name, body) for key, (_, body) in IDEAS.items()}
    texts["reference"] = reference(name)
    texts["the program's naive"] = submitted(
        name, (checking.HERE.parent / "modes" / "naive.py").read_text()
    )
    small = {key: texts.pop(key) for key in list(texts) if "baseline" in key}
    grades = grade(small)  # only as many pairs as in a real check show such a small gain
    pairs(8)
    grades |= grade(texts)
    print_points(grades)
    for key, found in grades.items():
        assert found.points >= IDEAS.get(key, [OUT_OF])[0], (key, words(found))


@pytest.mark.slow
def test_a_mode_that_does_not_share_gains_nothing(grade, pairs):
    name = "own-mode"
    pairs(5, without_interval=True)  # each gain counts, even if its interval contains 0
    texts = {key: wrong(name, *change) for key, change in WRONG[name].items()}
    texts |= {key: submitted(name, body) for key, body in TRICKS.items()}
    texts["stub"] = (checking.HERE / "stubs" / "own-mode.py").read_text()
    grades = grade(texts)
    print_points(grades)
    for key, found in grades.items():
        assert found.points <= 1, (key, words(found))


@pytest.mark.slow
def test_a_file_that_hangs_or_crashes_costs_its_own_points_only(grade_apart, monkeypatch, capsys):
    monkeypatch.setenv("MRL_PART_S", "2")
    stub = "\ndef honest(records, answers, verify, budget):\n    raise NotImplementedError\n"
    texts = {key: HEAD + key + stub for key in MISHAPS}
    endless = {key: texts.pop(key) for key in MISHAPS if "SIGSTOP" in key or "threading" in key}
    texts["honest"] = reference("liar")
    grades = grade_apart(texts)
    monkeypatch.setattr(checking, "LIMIT_S", 10.0)
    grades |= grade_apart(endless)
    assert grades.pop("honest").points == OUT_OF
    for key, found in grades.items():
        assert found.points == 0, (key, found)
        assert MISHAPS[key] in words(found), (key, words(found))
        assert len(found.printed) <= 1000
        commands.print_grade(found)
        assert all(map(str.isprintable, capsys.readouterr().out.split("\n"))), key


def test_a_loop_that_never_ends_costs_its_part_and_is_shown(grade_apart, monkeypatch):
    monkeypatch.setenv("MRL_PART_S", "1")
    first = "known, kept, calls = {}, [], 0"
    text = wrong("liar", first, f"{first}\n    while budget == 4: pass")
    (found,) = grade_apart({"loop": text}).values()
    assert found.points == 9 and not found.trouble  # the part about a short budget
    line = text.splitlines().index("    while budget == 4: pass") + 1
    assert "stopped after 1 s" in words(found) and f"line {line}" in words(found)


def test_a_file_that_ends_the_process_gets_no_points_and_the_reason(grade_apart):
    (found,) = grade_apart({"dies": HEAD + "import os\nos._exit(3)"}).values()
    assert found.points == 0 and "exit status 3" in found.trouble
    assert len(found.parts) > 1


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_the_parts_of_each_assignment_are_worth_ten_points(grade, name):
    (found,) = grade({"raises": f'ASSIGNMENT = "{name}"\nraise ValueError'}).values()
    parts = found.parts.values()
    assert sum(part["out_of"] for part in parts) == OUT_OF and found.points == 0
    assert len({part["part"] for part in parts}) == len(parts) > 1  # columns of a CSV


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('    "A": "sign",', '    "A": "clip",  # or {"A": "end token"}?\n    "A": "sign",'),
        ("CAUSES = {", 'CAUSES = {"A": "clip"}  # a first try\nCAUSES = {'),
        ("def policy_loss", 'CAUSES["A"] = "sign"\n\n\ndef policy_loss'),
    ],
)
def test_causes_are_read_as_the_file_leaves_them(grade, old, new):
    text = reference("bug").replace(old, new)
    if new.startswith("CAUSES["):
        text = text.replace('"A": "sign",', '"A": "",')
    (found,) = grade({"bug": text}).values()
    assert found.points == OUT_OF, words(found)


@pytest.mark.slow
def test_a_folder_with_strange_files_is_graded_to_its_end(tmp_path):
    """The program itself, with its own pytest: a class list in which little is as it should be."""
    folder = tmp_path / "class"
    (folder / "x.py").mkdir(parents=True)  # a folder with a file's name
    (folder / "x.py" / "inner.py").write_text("no assignment")
    (folder / "a.py").write_text(reference("liar"))
    (folder / "b.py").write_bytes(b"\xff\xfe" + 'ASSIGNMENT = "liar"'.encode("utf-16-le"))
    (folder / "c.py").write_text("# coding: no-such\n" + reference("liar"))
    (folder / "d.py").symlink_to(folder / "nowhere.py")
    (folder / "h\x1b[2J\n.py").write_text('ASSIGNMENT = "nothing"')
    (folder / os.fsdecode(b"m\xfcller.py")).write_text(reference("liar"))
    (folder / "j.py").write_text(HEAD + "import os\nos.kill(os.getpid(), 9)")
    command = [sys.executable, "mini_mrl.py", "assignment", "check", str(folder), "--seed", "1"]
    table = tmp_path / "grades.csv"
    done = subprocess.run([*command, f"--csv={table}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(map(str.isprintable, done.stdout.split("\n")))
    rows = {row["id"]: row for row in rows_of(table)}
    assert set(rows) == {"a", "b", "c", "h\\x1b[2J\\n", "j", "m\\udcfcller", "x"}
    for student, row in rows.items():
        points = "10" if student in ("a", "m\\udcfcller") else "0"
        assert points in (row["liar (10)"], row["no assignment (10)"]), student
    assert "exit status -9" in rows["j"]["liar: trouble"]


def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert mini_mrl.main(["assignment", "list"]) == 0
    assert all(name in capsys.readouterr().out for name in ["own-mode"])
    assert mini_mrl.main(["assignment", "start", "liar"]) == 0
    assert mini_mrl.main(["assignment", "start", "liar"]) == 2  # it never overwrites
    assert "already exists" in capsys.readouterr().err
    assert mini_mrl.main(["assignment", "check", "liar.py"]) == 0
    _, why, points = capsys.readouterr().out.splitlines()  # one line for all parts
    assert "NotImplementedError" in why and "0 of 10" in points
    (tmp_path / "ann.py").write_text(reference("liar") + "print('hello \x1b[2J')\n")
    assert mini_mrl.main(["assignment", "check", "ann.py", "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert "10 of 10 points" in said and "hello \\x1b[2J" in said and "\x1b" not in said
    assert mini_mrl.main(["assignment", "check", "nobody.py"]) == 2
    assert mini_mrl.main(["assignment", "start", "nothing"]) == 2
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    assert mini_mrl.main(["assignment", "check", "ann.py"]) == 2
    assert "python -m pip install" in capsys.readouterr().err


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_class_of_thirty_for_a_grade_book(tmp_path, monkeypatch, capsys):
    table = tmp_path / "grades.csv"
    monkeypatch.setattr(checking, "run", lambda *arguments: checked[arguments[0]](*arguments))

    def full(assignment, cwd, environment):
        if table.exists():  # it is written as it goes
            lengths.append(len(rows_of(table)))
        parts = {"test_all": {"part": "all", "out_of": 10, "points": 10, "message": "right"}}
        report = json.dumps({"parts": parts, "printed": ""})
        Path(environment["MRL_REPORT"]).write_text(report)
        return "exit status 0"

    checked = {"liar": full, "advantages": in_this_process}
    lengths = []
    folder = tmp_path / "class"
    for number in range(27):
        (folder / f"s{number:02}").mkdir(parents=True)
        (folder / f"s{number:02}" / "liar.py").write_text('ASSIGNMENT = "liar"')
    (folder / "ann-advantages.py").write_text(reference("advantages"))
    (folder / "eve.py").write_text('ASSIGNMENT = "liar"')
    (folder / "s00" / "old.py").write_text('ASSIGNMENT = "liar"')
    os.utime(folder / "s00" / "old.py", (1, 1))
    (folder / "s01" / "advantages.py").write_text(reference("advantages"))
    (folder / "s02" / "notes.py").write_text("x = 1")

    assert mini_mrl.main(["assignment", "check", str(folder), f"--csv={table}"]) == 0
    said = capsys.readouterr().out
    files_said = [line for line in said.splitlines() if line.startswith(str(folder))]
    assert len(files_said) == 32 and files_said == sorted(files_said)
    assert lengths == sorted(lengths) and len(set(lengths)) > 20

    rows = rows_of(table)
    assert len(rows) == 29  # a row for a student
    by_id = {row["id"]: row for row in rows}
    assert by_id["ann"]["advantages (10)"] == "10" and by_id["ann"]["liar (10)"] == ""
    assert by_id["s01"]["advantages (10)"] == by_id["s01"]["liar (10)"] == "10"
    assert (
        by_id["s01"]["advantages: divided by the group's population standard deviation (2)"] == "2"
    )
    assert by_id["s00"]["liar: handed in"] > "2000"  # the newer one of two files
    assert "has no line" in by_id["s02"]["no assignment: trouble"] and "eve" in by_id


def test_the_commands_of_the_lecturers_page_are_the_programs(capsys):
    page = (checking.HERE / "TEACHING.md").read_text(encoding="utf-8")
    printed = re.findall(r"^    python mini_mrl\.py (.+)$", page, re.MULTILINE)
    assert len(printed) >= 8
    for command in printed:
        assert mini_mrl.main([*shlex.split(command), "--help"]) == 0
        assert "Usage" in capsys.readouterr().out
        for name in re.findall(r"assignment start (\S+)", command):
            assert name in ASSIGNMENTS


def test_stubs_name_their_command_and_are_drawn(tmp_path):
    for name in ASSIGNMENTS:
        (tmp_path / name).mkdir()
        path, *curves = start(name, tmp_path / name)
        text = path.read_text(encoding="utf-8")
        assert f"assignment check {path.name}" in text
        assert checking.NAMED.search(text)[1] == name
        assert all(file.read_bytes().startswith(b"\x89PNG") for file in curves)
        assert bool(curves) == (name == "bug")
    with pytest.raises(MrlError, match="already exists"):
        start("sgt", tmp_path / "sgt")
    assert "CURVES = 0\n" not in (tmp_path / "bug" / "bug.py").read_text()
    assert len({tuple(drawn(number).values()) for number in range(300)}) > 200
    lengths = {len((CURVES / f"{bug.replace(' ', '-')}.csv").open().readlines()) for bug in BUGS}
    assert lengths == {81}


@pytest.mark.slow
def test_the_checks_are_no_tests_of_the_project():
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "mrl/classroom"],
        capture_output=True,
    )  # fmt: skip
    assert collected.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
