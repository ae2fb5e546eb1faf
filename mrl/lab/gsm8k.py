"""`python mini_mrl.py data gsm8k`: GSM8K (arXiv 2110.14168) from its authors' repository, as JSONL.

The files are fetched at one commit and must have the checksums below; so the problems are the same
for everybody. Only the question becomes the prompt, and only what stands behind `####` the answer:
the worked solution with its `<<..>>` notes is left out.
"""

import hashlib
import http.client
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from mrl.errors import MrlError

BASE_URL = (
    "https://raw.githubusercontent.com/openai/grade-school-math/"
    "3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"
)
SHA256 = {  # as published with the `datasets` library's gsm8k 1.1.0, of the same commit's files
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
MARK = "####"
TIMEOUT_S = 30


def fetch_gsm8k(
    out: Path,
    say: Callable[[str], None] = lambda text: None,
    base_url: str = BASE_URL,
    checksums: dict[str, str] = SHA256,
) -> None:
    """Write `train.jsonl` and `test.jsonl` into `out`; nothing is left behind if that fails.

    Raises MrlError with one sentence for what could not be fetched, a wrong checksum, a line that
    is no problem, or a folder that cannot be written.
    """
    made = {}
    for part, expected in checksums.items():
        url = f"{base_url}/{part}.jsonl"
        data = _download(url)
        found = hashlib.sha256(data).hexdigest()
        if found != expected:
            raise MrlError(
                f"{url}: has the SHA-256 {found}, not {expected}; it is not the published file, "
                "so it was not used. Try again, or on another network."
            )
        lines = list(problems(data.decode("utf-8"), part, url))
        made[part] = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        say(f"{part}: {len(lines)} problems, checksum right")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out) as partial:
            for part, text in made.items():
                (Path(partial) / part).write_text(text, encoding="utf-8")
            for part in made:  # only when both are complete
                (Path(partial) / part).replace(out / f"{part}.jsonl")
    except OSError as error:
        raise MrlError(f"{out}: cannot be written ({error.strerror}).") from None


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return response.read()
    except (http.client.HTTPException, OSError) as error:  # an HTTPError or URLError is an OSError
        raise MrlError(
            f"{url}: could not be fetched ({error}); check the network and try again, or put "
            "problems of your own into a JSONL file (data/README.md) and give it with --data."
        ) from None


def problems(text: str, part: str, where: str) -> Iterator[dict[str, str]]:
    """The authors' lines as problems of data/README.md's format; answers without commas."""
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        try:
            entry = json.loads(line)
            question = entry["question"].strip()
            _, mark, answer = entry["answer"].rpartition(MARK)
        except (ValueError, KeyError, TypeError, AttributeError):
            mark = ""
        if not mark or not answer.strip() or not question:
            raise MrlError(f"{where}:{number}: is no GSM8K problem (a question, {MARK} an answer).")
        answer = answer.strip().replace(",", "")
        yield {"id": f"gsm8k-{part}-{number:04d}", "prompt": question, "answer": answer}
