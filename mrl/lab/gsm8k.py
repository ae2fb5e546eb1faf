"""`python mini_mrl.py data gsm8k`: GSM8K (arXiv 2110.14168) from its authors' repository, as JSONL.

The files are fetched at one commit and must have the checksums below; so the problems are the same
for everybody. Only the question becomes the prompt, and only what stands behind `####` the answer:
the worked solution with its `<<..>>` notes is left out.
"""

import hashlib
import http.client
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

from mrl.errors import MrlError
from mrl.runtime.pairs import TEST_PART
from mrl.runtime.problems import save_problems
from mrl.samples import Problem

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
    say: Callable[[str], None] = print,
    base_url: str = BASE_URL,
    checksums: dict[str, str] = SHA256,
) -> None:
    """Write `train.jsonl` and `test.jsonl` into `out`, once both are complete and right.

    Raises MrlError with one sentence for what could not be fetched or has a wrong checksum, OSError
    for a folder that cannot be written.
    """
    made: dict[str, list[Problem]] = {}
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
        # not splitlines(): a question may hold other line breaks. The checksum vouches for the rest
        entries = map(json.loads, data.decode().strip().split("\n"))
        made[part] = [
            Problem(
                f"gsm8k-{part}-{number:04d}",
                entry["question"].strip(),
                entry["answer"].rpartition("####")[2].strip().replace(",", ""),
            )
            for number, entry in enumerate(entries, start=1)
        ]
        say(f"{part}: {len(made[part])} problems, checksum right")
    made[TEST_PART] = made["test"][::5]  # what a run scores by default
    for part, problems in made.items():
        save_problems(out / f"{part}.jsonl", problems)
    (out / "system_prompt.txt").write_text(SYSTEM_PROMPT, encoding="utf-8")
