"""`python mini_mrl.py gsm8k`: downloads GSM8K (arXiv 2110.14168) as JSONL for `--set train=FILE`.

The files come from the authors' repository at a fixed commit and must have the checksums below. The
question becomes the prompt, and the text after `####` becomes the answer. The worked solution is
left out.
"""

import hashlib
import http.client
import json
import urllib.request
from pathlib import Path

from mrl.errors import MrlError
from mrl.run.problems import save_problems
from mrl.samples import Problem
from mrl.settings.pairs import TEST_SPLIT

COMMIT = "3101c7d5072418e28b9008a6636bde82a006892c"
AUTHORS = "https://raw.githubusercontent.com/openai/grade-school-math"
BASE_URL = f"{AUTHORS}/{COMMIT}/grade_school_math/data"
SYSTEM_PROMPT = "Reason step by step and put the final answer into \\boxed{}.\n"
SHA256 = {  # as published with gsm8k 1.1.0 of the `datasets` library, for the same commit
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}


def make_gsm8k(out: Path) -> None:
    """Download the problems, and write them into `out` once all of them have arrived.

    Raises MrlError if a file cannot be downloaded, and OSError if `out` cannot be written.
    """
    splits: dict[str, list[Problem]] = {}
    for split in SHA256:
        splits[split] = []
        # not splitlines(), because a question may contain other line breaks
        lines = _fetched(split).decode().strip().split("\n")
        for number, line in enumerate(lines, start=1):
            entry = json.loads(line)
            answer = entry["answer"].rpartition("####")[2].strip().replace(",", "")
            problem_id = f"gsm8k-{split}-{number:04d}"
            splits[split].append(Problem(problem_id, entry["question"].strip(), answer))

    splits[TEST_SPLIT] = splits["test"][::5]  # these are held out by default
    for split, problems in splits.items():
        save_problems(out / f"{split}.jsonl", problems)
    (out / "system_prompt.txt").write_text(SYSTEM_PROMPT, encoding="utf-8")


def _fetched(split: str) -> bytes:
    url = f"{BASE_URL}/{split}.jsonl"
    remedy = "Try again, or copy data/gsm8k from another machine."
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            data = response.read()
    except (http.client.HTTPException, OSError) as error:  # a URLError is an OSError
        raise MrlError(f"{url}: the download failed ({error}). {remedy}") from None

    checksum = hashlib.sha256(data).hexdigest()
    if checksum != SHA256[split]:
        raise MrlError(f"{url}: the download is damaged (its SHA-256 is {checksum}). {remedy}")
    return data
