"""Against a file server on loopback: nothing here touches the network."""

import hashlib
import http.server
import json
import socket
import threading

import pytest

import mini_mrl
from mrl.errors import MrlError
from mrl.lab.gsm8k import BASE_URL, SHA256, fetch_gsm8k
from mrl.runtime.problems import load_problems

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
    threading.Thread(target=service.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{service.server_port}", files
    service.shutdown()
    service.server_close()


def checksums(text=TEXT):
    return dict.fromkeys(("train", "test"), hashlib.sha256(text).hexdigest())


def test_questions_become_prompts_and_only_the_final_number_the_answer(server, tmp_path, verifier):
    lines = []
    fetch_gsm8k(tmp_path / "g", lines.append, server[0], checksums())
    assert lines[0] == "train: 3 problems, checksum right"
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
        ({"/test.jsonl": TEXT[:-1] + b" "}, "has the SHA-256"),
        ({"/test.jsonl": TEXT[:40]}, "could not be fetched (IncompleteRead("),
        ({"/test.jsonl": None}, "could not be fetched (HTTP Error 404: Not Found)"),
    ],
)
def test_what_goes_wrong_gets_one_sentence_and_leaves_nothing(server, tmp_path, files, part):
    server[1].update(files)
    with pytest.raises(MrlError) as caught:
        fetch_gsm8k(tmp_path / "g", base_url=server[0], checksums=checksums())
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "g").exists()


def test_no_network_and_a_folder_that_cannot_be_written(server, tmp_path):
    with socket.socket() as unheard:  # bound, but nobody listens
        unheard.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        with pytest.raises(MrlError, match="Connection refused"):
            fetch_gsm8k(tmp_path, base_url=closed, checksums=checksums())
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        fetch_gsm8k(tmp_path / "file" / "g", base_url=server[0], checksums=checksums())
    (tmp_path / "g" / "test.jsonl").mkdir(parents=True)
    with pytest.raises(OSError):
        fetch_gsm8k(tmp_path / "g", base_url=server[0], checksums=checksums())
    left = {path.name for path in (tmp_path / "g").iterdir()}
    assert left == {"train.jsonl", "test.jsonl"}  # nothing half written


def test_the_pins_are_whole():
    assert all(len(value) == 64 for value in SHA256.values())
    assert "/master/" not in BASE_URL


def test_another_data_set_gets_one_sentence(capsys):
    assert mini_mrl.main(["data", "math"]) == 2
    assert "known is gsm8k" in capsys.readouterr().err
