"""Against a file server on loopback: nothing here touches the network."""

import hashlib
import http.server
import json
import re
import socket
import threading
from pathlib import Path

import pytest

import mini_mrl
from mrl.config import DATA
from mrl.errors import MrlError
from mrl.lab.gsm8k import make_gsm8k
from mrl.run.problems import load_problems
from tests.sentences import names_it

LINES = [
    {"question": "Ann has 1,200. Eats 5.", "answer": "1200-5=<<1200-5=1195>>1195\n#### 1,195"},
    {"question": "Bob owes 3.  ", "answer": "So he has -3.\n#### -3"},
    {"question": "Half a pie?", "answer": "a #### b\n#### 0.5"},
]  # fmt: skip
TEXT = "".join(json.dumps(line) + "\n" for line in LINES).encode()


@pytest.fixture
def server(monkeypatch):
    """A server whose files a test sets; a body that is too short breaks the connection."""
    monkeypatch.setenv("no_proxy", "*")  # urllib would send even loopback to a proxy
    files = {"/train.jsonl": TEXT, "/test.jsonl": TEXT}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(TEXT)))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *arguments):
            pass

    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr("mrl.lab.gsm8k.BASE_URL", f"http://127.0.0.1:{service.server_port}")
    checksums = dict.fromkeys(("train", "test"), hashlib.sha256(TEXT).hexdigest())
    monkeypatch.setattr("mrl.lab.gsm8k.SHA256", checksums)
    yield files
    service.shutdown()
    service.server_close()


def test_questions_become_prompts_and_only_the_final_number_the_answer(
    server, tmp_path, verifier, capsys
):
    assert mini_mrl.main(["gsm8k", "--out", str(tmp_path / "g")]) == 0
    assert f"Written: {tmp_path / 'g'}" in capsys.readouterr().out
    written = sorted(path.name for path in (tmp_path / "g").iterdir())
    assert written == ["system_prompt.txt", "test-264.jsonl", "test.jsonl", "train.jsonl"]
    assert "\\boxed{}" in (tmp_path / "g" / "system_prompt.txt").read_text()
    found = load_problems(tmp_path / "g" / "train.jsonl", verifier.check_answer)
    assert [p.answer for p in found] == ["1195", "-3", "0.5"]
    assert [p.id for p in found] == [f"gsm8k-train-000{n}" for n in (1, 2, 3)]
    assert found[1].prompt == "Bob owes 3."
    text = (tmp_path / "g" / "train.jsonl").read_text()
    assert "####" not in text
    assert "<<" not in text


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"/test.jsonl": TEXT[:-1] + b" "}, "test.jsonl SHA-256"),
        ({"/test.jsonl": TEXT[:40]}, "test.jsonl IncompleteRead"),
        ({"/test.jsonl": None}, "test.jsonl 404"),
    ],
)
def test_what_goes_wrong_gets_one_sentence_and_leaves_nothing(server, tmp_path, files, part):
    server.update(files)
    with pytest.raises(MrlError) as caught:
        make_gsm8k(tmp_path / "g")
    assert names_it(str(caught.value), part)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "g").exists()


def test_no_network_and_a_folder_that_cannot_be_written(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        make_gsm8k(tmp_path / "file" / "g")
    (tmp_path / "g" / "test.jsonl").mkdir(parents=True)
    with pytest.raises(OSError):
        make_gsm8k(tmp_path / "g")
    left = {path.name for path in (tmp_path / "g").iterdir()}
    assert left == {"train.jsonl", "test.jsonl"}  # nothing half written
    with socket.socket() as unheard:  # bound, but without a listener
        unheard.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        monkeypatch.setattr("mrl.lab.gsm8k.BASE_URL", closed)
        with pytest.raises(MrlError, match=r"Connection refused.*or copy data/gsm8k"):
            make_gsm8k(tmp_path)


def test_the_ten_lines_of_the_readme_make_a_problem_file(tmp_path, monkeypatch, verifier):
    monkeypatch.chdir(tmp_path)
    Path("questions.csv").write_text("question,answer\nWhat is 2+2?,4\nnone,\n")
    (lines,) = re.findall(r"```python\n(.*?)```", (DATA / "README.md").read_text(), re.DOTALL)
    exec(lines, {})
    (problem,) = load_problems(Path("mine.jsonl"), verifier.check_answer)
    assert (problem.prompt, problem.answer) == ("What is 2+2?", "4")
