"""`python mini_mrl.py data gsm8k`: GSM8K (arXiv 2110.14168) as JSONL for `--set train=FILE`.

The files are fetched from the authors' repository at one commit and must have the checksums below,
or they are local copies as published there (JSONL) or for the `datasets` library (parquet). Only
the question becomes the prompt, and only what stands behind `####` the answer: the worked solution
with its `<<..>>` notes is left out.
"""

import hashlib
import http.client
import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from mrl.errors import MrlError
from mrl.runtime.pairs import TEST_PART
from mrl.runtime.problems import save_problems
from mrl.samples import Problem

COMMIT = "3101c7d5072418e28b9008a6636bde82a006892c"
AUTHORS = "https://raw.githubusercontent.com/openai/grade-school-math"
BASE_URL = f"{AUTHORS}/{COMMIT}/grade_school_math/data"
SYSTEM_PROMPT = "Reason step by step and put the final answer into \\boxed{}.\n"
SHA256 = {  # as published with the `datasets` library's gsm8k 1.1.0, of the same commit's files
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}


def make_gsm8k(out: Path, files: Sequence[Path] = ()) -> None:
    """Write problem files into `out` once all of them are right.

    files: local copies with "train" or "test" in their names; none: both parts are fetched. Raises
    MrlError with one sentence for what cannot be used, OSError for a folder that cannot be written.
    """
    parts: dict[str, list[Problem]] = {}
    for file in files or map(Path, SHA256):
        part = "train" if "train" in file.name else "test"
        try:
            entries = _local(file) if files else _json_lines(_fetched(part))
            parts[part] = []
            for number, entry in enumerate(entries, start=1):
                answer = entry["answer"].rpartition("####")[2].strip().replace(",", "")
                problem_id = f"gsm8k-{part}-{number:04d}"
                parts[part].append(Problem(problem_id, entry["question"].strip(), answer))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            wrong = f"{file}: is not GSM8K as published ({error!r})"
            raise MrlError(f"{wrong}; data/README.md shows how to bring other data.") from None

    if "test" in parts:
        parts[TEST_PART] = parts["test"][::5]  # what a run scores by default
    for part, problems in parts.items():
        save_problems(out / f"{part}.jsonl", problems)
    (out / "system_prompt.txt").write_text(SYSTEM_PROMPT, encoding="utf-8")


def _local(file: Path) -> list[dict]:
    if file.suffix != ".parquet":
        return _json_lines(file.read_bytes())
    try:
        from pyarrow import parquet
    except ImportError:
        raise MrlError(f"{file}: reading parquet needs `pip install pyarrow`.") from None
    return parquet.read_table(file).to_pylist()


def _json_lines(data: bytes) -> list[dict]:
    # not splitlines(): a question may hold other line breaks
    return [json.loads(line) for line in data.decode().strip().split("\n")]


def _fetched(part: str) -> bytes:
    url = f"{BASE_URL}/{part}.jsonl"
    copies = "name local copies: python mini_mrl.py data gsm8k train.jsonl test.jsonl."
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            data = response.read()
    except (http.client.HTTPException, OSError) as error:  # a URLError is an OSError
        raise MrlError(f"{url}: could not be fetched ({error}); try again, or {copies}") from None

    checksum = hashlib.sha256(data).hexdigest()
    if checksum != SHA256[part]:
        raise MrlError(f"{url}: has the SHA-256 {checksum}, so it was not used; {copies}")
    return data
