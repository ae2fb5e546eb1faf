"""A submission in a process of its own: started, limited, asked, answered, ended.

    checker (this process)                server (a fresh `python -I`, has imported torch once)
        |--- "fork for this file", two file handles --->|
        |                                               |--- fork ---> submission's process
        |<------------- requests and replies, one JSON line each ------------->|

The checker never runs a line of a submission. It sends inputs, gets outputs back as JSON, and
compares them here; so whatever a submission prints, patches or ends, it does so in its own process
and to its own points. What this does *not* protect against is in TEACHING.md.
"""

import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from mrl.errors import MrlError

ROOT = Path(__file__).resolve().parents[3]
SUBMISSION = "submission.py"  # a copy of it, alone in a fresh folder
START_LIMIT_S = 120  # importing transformers takes seconds, on a busy machine more
FILE_BYTES = 16 << 20  # of any file that a submission writes, its output included
LINE_BYTES = 8 << 20  # of one reply
OUTPUT_BYTES = 2_000  # of its output that somebody is shown
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "SYSTEMROOT")  # no other variable gets in
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from mrl.classroom.sandbox import serve; serve(int(sys.argv[2]), *sys.argv[3:])"
)


class Raised(Exception):
    """The submission's code raised an error; its process goes on."""


class Gone(Exception):
    """The submission's process has ended or was ended; nothing more can be asked of it."""


# ------------------------------------------------------------------------------ the checker's side


class Session:
    """The conversation with one submission's process."""

    def __init__(self, server: "Server", pid: int, link: socket.socket, limit_s: float) -> None:
        self._server, self._pid, self._link = server, pid, link
        self.limit_s = limit_s
        self._left_s = limit_s  # of waiting for it, all requests together
        self._unread = b""

    def call(self, do: str, given: Any = None, reply: Callable[[Any], Any] | None = None) -> Any:
        """Have `perform(module, do, given, ask)` of the assignment run there; its result.

        reply: answers what the submission asks meanwhile, here, where it cannot be tampered with.
        Every request has a token of its own, so that nothing written in advance is taken for the
        reply. Raises Raised or Gone.
        """
        token = secrets.token_hex(8)
        self._send({"token": token, "do": do, "given": given})
        while True:
            said = self._receive()
            if not isinstance(said, dict) or said.get("token") != token:
                raise self._end("it wrote to the checker's own channel")
            if "question" in said and reply is not None:
                self._send({"reply": reply(said["question"])})
                continue
            if "error" in said:
                raise Raised(visible(str(said["error"]), 400))
            return said.get("result")

    def _send(self, message: dict) -> None:
        self._link.settimeout(max(self._left_s, 0.1))
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise self._end("it hung up") from None

    def _receive(self) -> Any:
        start = time.monotonic()
        try:
            while b"\n" not in self._unread:
                left = self._left_s - (time.monotonic() - start)
                if left <= 0:
                    raise TimeoutError
                self._link.settimeout(left)
                got = self._link.recv(1 << 16)
                if not got:
                    raise self._end("it hung up")
                self._unread += got
                if len(self._unread) > LINE_BYTES:
                    raise self._end("its result is too large")
        except TimeoutError:
            words = f"it was stopped after {self.limit_s:g} s; is there a loop that never ends?"
            raise self._end(words, timed_out=True) from None
        except OSError:
            raise self._end("it hung up") from None
        self._left_s -= time.monotonic() - start
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise self._end("it wrote to the checker's own channel") from None

    def _end(self, words: str, timed_out: bool = False) -> Gone:
        status = self.close()
        if words == "it hung up" and status is not None and not timed_out:
            if status >= 0:
                words = f"it ended its own process (exit status {status}) before it had answered"
            elif status != -signal.SIGKILL:
                words = f"its process died ({signal.Signals(-status).name})"
        return Gone(words)

    def close(self) -> int | None:
        """End the process and all of its group. Returns how it had ended, if that is known."""
        pid, self._pid = self._pid, 0
        if not pid:
            return None
        self._link.close()
        for end in (os.killpg, os.kill):  # not reaped yet, so the number is still its own
            with suppress(OSError):
                end(pid, signal.SIGKILL)
        return self._server.reap(pid)


class Server:
    """Starts submissions' processes for one assignment; is itself started anew if one ends it."""

    def __init__(self, assignment: str, preload: Sequence[str] = ()) -> None:
        self._names = (assignment, *preload)
        self._process: subprocess.Popen[bytes] | None = None
        self._home = tempfile.TemporaryDirectory(prefix="mrl-", ignore_cleanup_errors=True)

    def _start(self) -> None:
        self.stop()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_LIMIT_S)
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {"HOME": self._home.name, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment["CUDA_VISIBLE_DEVICES"] = ""
        complaints = Path(self._home.name) / "complaints.txt"
        with theirs, complaints.open("wb") as stderr:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-c",
                    PROGRAM,
                    str(ROOT),
                    str(theirs.fileno()),
                    *self._names,
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=self._home.name,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the checker alone
            )
        if not self._hear():
            last = complaints.read_text(errors="replace").strip().split("\n")[-1]
            raise MrlError(f"The process that runs submissions does not start: {last}")

    def _hear(self) -> dict | None:
        """One line from the server; None if it is not there any more."""
        heard = b""
        with suppress(OSError):
            while not heard.endswith(b"\n"):
                got = self._control.recv(4096)
                if not got:
                    return None
                heard += got
        return json.loads(heard) if heard.endswith(b"\n") else None

    def open(self, folder: Path, output: BinaryIO, limit_s: float, memory: int) -> Session:
        """A process for the submission that lies in the folder; it has not run a line yet."""
        order = {"folder": str(folder), "cpu_s": int(limit_s) + 2, "memory": memory}
        for _ in range(2):  # the last submission may have taken the server down
            if self._process is None or self._process.poll() is not None:
                self._start()
            mine, theirs = socket.socketpair()
            with theirs:
                with suppress(OSError):
                    handles = [theirs.fileno(), output.fileno()]
                    socket.send_fds(self._control, [json.dumps(order).encode()], handles)
                heard = self._hear()
            if heard:
                return Session(self, heard["pid"], mine, limit_s)
            mine.close()
            self.stop()
        raise MrlError("The process that runs submissions ended twice without a reason.")

    def reap(self, pid: int) -> int | None:
        """How a process that has ended did so: its exit status, or minus a signal's number."""
        try:
            self._control.sendall(json.dumps({"reap": pid}).encode())
        except OSError:
            return None
        heard = self._hear()
        return heard and heard["status"]

    def stop(self) -> None:
        """End the server."""
        if self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the server and remove its folder."""
        self.stop()
        self._home.cleanup()


def visible(text: str, limit: int = 300) -> str:
    """Text of a submission, safe for a terminal: control characters become visible escapes."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])
    return shown + (" [...]" if len(text) > limit else "")


# ------------------------------------------------------------------------------ the server's side


def serve(control: int, assignment: str, *preload: str) -> None:
    """Fork a process for each submission that the checker sends, until the checker hangs up."""
    for name in (f"mrl.classroom.{assignment}", *preload):
        import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # before a fork there must be no other thread
    link = socket.socket(fileno=control)
    link.sendall(b'{"ready": true}\n')
    while True:
        message, handles, _, _ = socket.recv_fds(link, 1 << 16, 2)
        if not message:
            return
        order = json.loads(message)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            link.sendall(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
            continue
        pid = os.fork()
        if pid == 0:
            link.close()
            try:
                _live(assignment, order, *handles)
            finally:
                os._exit(1)
        for handle in handles:
            os.close(handle)
        link.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def _live(assignment: str, order: dict, channel: int, output: int) -> None:
    """The submission's process: load the file, then do what the checker asks, one by one."""
    os.setsid()  # a group of its own, so that its children end with it
    os.chdir(order["folder"])
    for handle, place in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(handle, place)
    link = socket.socket(fileno=os.dup(channel))
    os.closerange(3, link.fileno())
    os.closerange(link.fileno() + 1, link.fileno() + 64)
    _limit(order["cpu_s"], order["memory"])
    helper = import_module(f"mrl.classroom.{assignment}")
    for name in helper.BLOCKED:
        sys.modules[name] = None  # importing the answer fails
    reader = link.makefile("rb")

    def say(**words: Any) -> None:
        with suppress(Exception):
            sys.stdout.flush()  # the process will be killed, not ended
        link.sendall(json.dumps(words).encode() + b"\n")

    module: ModuleType | None = None
    for line in reader:
        request = json.loads(line)
        token = request["token"]

        def ask(question: Any, token: str = token) -> Any:
            say(token=token, question=question)
            return json.loads(reader.readline())["reply"]

        try:
            if request["do"] == "load":
                module, result = _load(), None
            else:
                result = helper.perform(module, request["do"], request["given"], ask)
            say(token=token, result=result)
        except BaseException as error:  # also SystemExit: the checker decides what it costs
            say(token=token, error=_describe(error, helper.BLOCKED))


def _limit(cpu_s: int, memory: int) -> None:
    """Limits of this process: processor seconds, address space beyond what is taken, file sizes."""
    with suppress(OSError, ValueError):  # only where the system tells
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _load() -> ModuleType:
    spec = spec_from_file_location("submission", SUBMISSION)
    module = module_from_spec(spec)
    sys.modules["submission"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _describe(error: BaseException, blocked: Sequence[str]) -> str:
    """One line for the student: what was raised, and where in their file."""
    if isinstance(error, ImportError) and error.name in blocked:
        return f"it imports {error.name}, which holds the answer; write it yourself"
    if isinstance(error, SystemExit):
        words = f"it called sys.exit({error.code!r})"
    elif isinstance(error, MemoryError):
        words = "it needs more memory than it is given"
    else:
        words = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename.endswith(SUBMISSION)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    return words + (f" (line {lines[-1]} of the file)" if lines else "")
