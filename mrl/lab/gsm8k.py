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

from mrl.errors import MrlError

BASE_URL = (
    "https://raw.githubusercontent.com/openai/grade-school-math/"
    "3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"
)
SYSTEM_PROMPT = "Reason step by step and put the final answer into \\boxed{}.\n"
SHA256 = {  # as published with the `datasets` library's gsm8k 1.1.0, of the same commit's files
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}


def fetch_gsm8k(
    out: Path,
    say: Callable[[str], None] = lambda text: None,
    base_url: str = BASE_URL,
    checksums: dict[str, str] = SHA256,
) -> None:
    """Write `train.jsonl` and `test.jsonl` into `out`, once both are complete and right.

    Raises MrlError with one sentence for what could not be fetched, a wrong checksum, or a folder
    that cannot be written.
    """
    made = {}
    for part, expected in checksums.items():
        url = f"{base_url}/{part}.jsonl"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                data = response.read()
        except (http.client.HTTPException, OSError) as error:  # a URLError is an OSError
            raise MrlError(
                f"{url}: could not be fetched ({error}); check the network and try again, or put "
                "problems of your own into a JSONL file (data/README.md), for --set train=FILE."
            ) from None
        if (found := hashlib.sha256(data).hexdigest()) != expected:
            raise MrlError(
                f"{url}: has the SHA-256 {found}, not {expected}; it is not the published file, "
                "so it was not used. Try again, or on another network."
            )
        lines = [json.dumps(line, ensure_ascii=False) for line in problems(data.decode(), part)]
        made[part] = "\n".join(lines) + "\n"
        say(f"{part}: {len(lines)} problems, checksum right")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for part, text in made.items():
            (out / f"{part}.jsonl").write_text(text, encoding="utf-8")
        (out / "system_prompt.txt").write_text(SYSTEM_PROMPT, encoding="utf-8")
    except OSError as error:
        raise MrlError(f"{out}: cannot be written ({error.strerror}).") from None


def problems(text: str, part: str) -> Iterator[dict[str, str]]:
    """The authors' lines as problems of data/README.md's format; answers without commas."""
    # not splitlines(): a question may hold other line breaks. The checksum vouches for the rest
    for number, line in enumerate(text.strip().split("\n"), start=1):
        entry = json.loads(line)
        answer = entry["answer"].rpartition("####")[2].strip().replace(",", "")
        name = f"gsm8k-{part}-{number:04d}"
        yield {"id": name, "prompt": entry["question"].strip(), "answer": answer}
