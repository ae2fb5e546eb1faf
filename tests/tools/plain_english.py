"""Print suspicious phrases in help texts, docstrings, comments and pages.

    python tests/tools/plain_english.py [PATH ...]      default: the program, its data and the pages

Each line of the output is a place, the reason, and the phrase. The rules are only hints: a person
reads the output and decides, and nothing fails. Code and quoted text are not checked.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATHS = ("mini_mrl.py", "one_file.py", "mrl", "data", "README.md", "TUTORIAL.md", "tests/README.md")
RULES = {  # reason -> pattern
    "write: except": r"\bbut for\b",
    "write: instead of": r"\bin (?:the )?place of\b",
    "write: almost": r"\bnext to (?:never|nothing|no)\b",
    "write: completely, or all attempts fail": r"\b(?:altogether|outright)\b",
    "write: is not a": r"(?<!there )\b(?:is|are) (?:no [a-z]+|none)\b",
    "write: also, before the verb": r",? too[.,;:)]",
    "write: 92%, without a space": r"\d %",
    "write: default": r"(?:^|[;,(] ?)none:",
    "needs a head noun": r"\A(?:[Oo]f |[Ww]ith commas|[Tt]he same\b)",
    "write: a user's own": r"\bone's own\b",
    "write: equally, or similar": r"\balike\b",
    "write: after": r"\bbehind\b",
    "write: next to, or besides": r"\bbeside\b",
    "write: blind spot": r"\bholes?\b",
    "write: interpretation": r"\b(?:our|a|the|right|wrong) readings?\b",
    "write: close a blind spot": r"\b(?:open|fill)(?:s|ed)? (?:a |the |all )?(?:hole|blind)",
    "write: shared, or sent": r"\bcross(?:es|ed)?\b(?! *-)",
    "write: completion, or solution": r"\bright texts?\b|\bpeers?'s? texts?\b",
    "write: correct, or incorrect": r"\b(?:right|wrong) (?:attempt|answer|completion)s?\b",
    "American spelling": r"\b(?:learnt|behaviour|neighbour|colour|licen[c]e|analyse|maximise|"
    r"initialise|grey|whilst)\w*\b",
    "inverted: subject first": r"(?:^|[.;:] )(?:Of (?:what|two|which|the)|What is to)\b",
    "which reader?": r"\ba person(?:'s)?\b",
}
COMPILED = {reason: re.compile(pattern, re.MULTILINE) for reason, pattern in RULES.items()}
# text that is not prose: code blocks, inline code, links, formulas in indented lines
NOT_PROSE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<[^>]*>|^ {4,}\S.*?$", re.S | re.M)


def python_texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring, comment, and string that contains a space."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    comment, start = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            start = start if comment else token.start[0]
            comment += " " + token.string.lstrip("# ")
        elif token.type != tokenize.NL and comment:  # consecutive comments are one text
            yield start, comment.strip()
            comment = ""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of everything that a person reads in a file."""
    if path.suffix == ".py":
        yield from python_texts(path)
    else:
        yield 1, path.read_text(encoding="utf-8")


def findings(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, reason, phrase) of each suspicious phrase in a file."""
    for first, text in texts(path):
        prose = NOT_PROSE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
        for reason, pattern in COMPILED.items():
            for match in pattern.finditer(prose):
                line = first + prose.count("\n", 0, match.start())
                around = prose[max(0, match.start() - 30) : match.end() + 30]
                yield line, reason, " ".join(around.split())


def files(paths: list[str]) -> Iterator[Path]:
    """The Python and Markdown files in the given files and folders."""
    for name in paths:
        path = Path(name)
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.suffix in (".py", ".md"))


def main(arguments: list[str]) -> None:
    """Print the findings, and how many there are for each rule."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", default=[str(ROOT / name) for name in PATHS])
    counts: Counter[str] = Counter()
    for file in files(parser.parse_args(arguments).paths):
        place = file.resolve()
        place = place.relative_to(ROOT) if place.is_relative_to(ROOT) else file
        for line, reason, phrase in findings(file):
            counts[reason] += 1
            print(f"{place}:{line}: {reason}: {phrase}")
    for reason, count in counts.most_common():
        print(f"{count:5} {reason}")


if __name__ == "__main__":
    main(sys.argv[1:])
