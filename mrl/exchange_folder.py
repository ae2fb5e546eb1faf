"""A folder through which policies of different programs exchange records.

Each policy appends its records to a JSONL file of its own, `DIR/<policy>.jsonl`, and reads the
files of all others. So a peer may be another run of mini-mrl, a run that ended long ago, a job of
another training program, or a script that writes worked solutions. data/README.md describes a line.

A record names its problem by a hash of the question, because ids repeat across data sets. Whatever
stands in the folder is treated like the claims of a liar: this file checks the form of each line
and counts what it refuses, the exchange validates the record, and the receiver judges the
completion again.

Each file is read from where the last reading ended, so the cost of a step depends on the new lines
and not on the length of the files. With a folder that others write to, two runs with the same seed
differ. With a folder that does not change they are equal, and so is a run that was resumed.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import stat
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

from mrl.errors import MrlError, RunFailed
from mrl.records import CompletionRecord, Record, RolloutRecord, SuccessRecord
from mrl.reward import Verdict
from mrl.samples import Problem

FORMAT = 1  # version of the lines; a reader refuses lines of another one
LONGEST_LINE = 2**16  # bytes; a longer line is refused without being parsed
KINDS: dict[str, type[CompletionRecord]] = {
    kind.kind: kind for kind in (SuccessRecord, RolloutRecord)
}
STEP_DONE = "step"  # kind of the line that says: this source has published its records of a step


def question_hash(question: str) -> str:
    """The name of a problem in the folder: 16 hexadecimal digits from SHA-256 of its prompt."""
    return hashlib.sha256(question.encode()).hexdigest()[:16]


class Folder:
    """The records of peers outside of this program, and the files of its own policies.

    own: the names of all policies of this program, whose files are not read.
    problems: the training problems; a record about another question is counted and ignored.
    newest: how many records are kept for each problem and source: the newest ones.
    wait_s: the longest time, in seconds, that `read` waits for peers that are behind.
    """

    def __init__(
        self,
        directory: str | Path,
        own: Sequence[str],
        problems: Sequence[Problem],
        newest: int = 8,
        wait_s: float = 0.0,
    ) -> None:
        self.directory = Path(directory)
        self.own = set(own)
        self.newest = newest
        self.wait_s = wait_s
        self.counts: Counter[str] = Counter()  # what was read and refused since `take_counts`

        # a file may ask the same question twice, under two ids
        self._questions = {problem.id: question_hash(problem.prompt) for problem in problems}
        self._answers = {question_hash(problem.prompt): problem.answer for problem in problems}
        # question -> source -> its newest records
        self._records: dict[str, dict[str, deque[CompletionRecord]]] = defaultdict(dict)
        self._positions: dict[str, int] = {}  # file name -> bytes that were read
        self._steps: dict[str, int] = {}  # source -> the last step whose records it has published
        self._not_waited_for: dict[str, int] = {}  # source -> its step when waiting was in vain
        self._files: dict[str, BinaryIO] = {}  # own policy -> its open and locked file

    # -------------------------------------------------------------------------- own files

    def open(self, policy: str, written: int | None = None) -> bool:
        """Open and lock the file of one of this program's policies.

        written: the file's size at the checkpoint from which a run continues; what was written
        after it is cut off. None for a new run, which must not find a file of that name.
        Returns False if the file was shorter than `written`, so that peers lack some records.
        Raises MrlError if another program writes the file, or if a new run finds it.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{policy}.jsonl"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise MrlError(
                f"Another run is writing {path}. Give this policy another name, or use another "
                "folder."
            ) from None
        except OSError:
            pass  # a file system without locks

        size = os.fstat(file.fileno()).st_size
        if written is None and size:
            file.close()
            raise MrlError(
                f"{path} exists already: another run has published under the name {policy}. Give "
                "this policy another name, or move the file."
            )
        os.ftruncate(file.fileno(), min(size, written or 0))
        self._files[policy] = file
        return size >= (written or 0)

    def close(self) -> None:
        """Close and unlock the files of this program's policies."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def publish(self, source: str, records: Iterable[Record], step: int) -> None:
        """Append a policy's records of a step, and then the line that says that it is done.

        Raises RunFailed if somebody has removed the file. Raises OSError if the disk is full.
        """
        lines = []
        for record in records:
            question = self._questions[record.prompt_id]
            line = {"format": FORMAT, "kind": record.kind, "question": question, **asdict(record)}
            del line["prompt_id"]  # the receivers know the problem by its question
            lines.append(line)
        lines.append({"format": FORMAT, "kind": STEP_DONE, "source": source, "step": step})
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

        file, path = self._files[source], self.directory / f"{source}.jsonl"
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
            raise RunFailed(f"{path} was removed while this run was writing it.")
        while data:  # an unbuffered file may take only a part
            data = data[file.write(data) :]

    # -------------------------------------------------------------------------- files of others

    def read(self, step: int = 0) -> None:
        """Read what is new in the files of others; wait for peers that are behind `step`.

        A peer is waited for if it has published an earlier step, and if its file has grown since
        this program last waited for it in vain.
        """
        self._read_new_lines()
        deadline = time.monotonic() + self.wait_s
        while behind := self._behind(step):
            if time.monotonic() >= deadline:
                self._not_waited_for |= {source: self._steps[source] for source in behind}
                return
            time.sleep(0.1)
            self._read_new_lines()

    def _behind(self, step: int) -> list[str]:
        """The peers that will publish this step later, as far as their files tell."""
        return [
            source
            for source, done in self._steps.items()
            if done < step and self._not_waited_for.get(source) != done
        ]

    def _read_new_lines(self, ends: dict[str, int] | None = None) -> None:
        """Read all complete new lines; with `ends`, only those files, and only up to there."""
        for path in sorted(self.directory.glob("*.jsonl")):
            name = path.name
            if path.stem in self.own or (ends is not None and name not in ends):
                continue
            try:
                with _open_regular(path) as file:
                    self._read_file(file, name, math.inf if ends is None else ends[name])
            except OSError:  # a link, a pipe, no permission, or it was just deleted
                self.counts["unreadable_files"] += 1

    def _read_file(self, file: BinaryIO, name: str, end: float) -> None:
        position = self._positions.get(name, 0)
        size = os.fstat(file.fileno()).st_size
        if size < position:  # its writer has cut it back: what stands there was read before
            self.counts["cut_back"] += 1
            position = size
        file.seek(position)
        while position < end:
            line = file.readline(LONGEST_LINE)
            if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                break  # its writer has not finished this line
            position += len(line)
            self._take(line, source=name.removesuffix(".jsonl"))
        self._positions[name] = position

    def _take(self, line: bytes, source: str) -> None:
        """Keep the record of a line, or count why it is refused."""
        entry = _parse(line)
        if entry is None or entry.get("format") != FORMAT:
            self.counts["refused/unknown_format" if entry else "refused/not_a_record"] += 1
            return
        if entry.get("kind") == STEP_DONE and type(entry.get("step")) is int:
            self._steps[source] = entry["step"]
            return

        question = str(entry.get("question"))
        if question not in self._answers:
            self.counts["refused/unknown_question"] += 1
            return
        record = record_of(entry, self._answers[question], source)
        if record is None:
            self.counts["refused/not_a_record"] += 1
            return
        by_source = self._records[question]
        by_source.setdefault(source, deque(maxlen=self.newest)).append(record)
        self.counts["records"] += 1

    def records_about(self, problems: Iterable[Problem]) -> Iterator[Record]:
        """The newest records of all other sources about these problems, by name of the source."""
        for problem in problems:
            by_source = self._records.get(question_hash(problem.prompt), {})
            for source in sorted(by_source):
                for record in by_source[source]:
                    yield replace(record, prompt_id=problem.id)

    def take_counts(self) -> dict[str, int]:
        """What was read and refused since the last call, as metrics."""
        counts, self.counts = self.counts, Counter()
        return {f"folder/{name}": counts[name] for name in sorted(counts)}

    # -------------------------------------------------------------------------- checkpoints

    def state(self, policy: str) -> dict:
        """What a checkpoint of a policy holds: bytes written by it, and bytes read of others."""
        size = os.fstat(self._files[policy].fileno()).st_size
        return {"written": size, "read": dict(self._positions)}

    def restore(self, read: dict[str, int]) -> None:
        """Read the files of others up to where they were read at the checkpoint.

        read: file name -> bytes, as in `state`.
        """
        self._read_new_lines(ends=read)
        self.counts.clear()  # they were counted before the checkpoint


def record_of(entry: dict[str, Any], answer: str, source: str) -> CompletionRecord | None:
    """The record of a line, or None if a field is missing or has the wrong type.

    answer: that of the reader's problem. `records_about` fills in the problem's id. The source is
    the name of the file, whatever the line says. A success needs only its text: what a program
    without a tokenizer cannot know has a default.
    """
    kind = KINDS.get(str(entry.get("kind")))
    if kind is None:
        return None
    values = {"version": 0, "index": 0, "finished": True, "canonical": False} | entry
    values |= {"prompt_id": "", "source": source}
    if kind is SuccessRecord:
        values["answer"] = answer
        values.setdefault("verdict", str(Verdict.CORRECT))
        if isinstance(values.get("text"), str) and "token_lengths" not in values:
            # errors: validation refuses half of an emoji later
            values["token_lengths"] = [len(values["text"].encode(errors="replace"))]

    arguments = {}
    for name, hint in _types_of(kind).items():
        value = values.get(name)
        if not _has_type(value, hint):
            return None
        arguments[name] = tuple(value) if isinstance(value, list) else value
    return kind(**arguments)


@cache
def _types_of(kind: type[CompletionRecord]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _has_type(value: Any, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return isinstance(value, list) and all(_has_type(entry, inner) for entry in value)
    if hint == float | None and value is None:
        return True
    if hint in (float, float | None):
        return type(value) in (int, float)
    return type(value) is hint  # `isinstance` would take True for an int


def _parse(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, or None."""
    try:
        entry = json.loads(line) if len(line) < LONGEST_LINE else None
    except (ValueError, RecursionError):  # also for bytes that are not UTF-8
        return None
    return entry if isinstance(entry, dict) else None


@contextlib.contextmanager
def _open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading. Raises OSError for a link, a pipe or a directory."""
    # without O_NONBLOCK, opening a pipe would wait until somebody writes into it
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        yield file
