"""The page for trying out what TUTORIAL.md derives: `python data/page/make.py` writes index.html.

The page's own text and script stand in template.html. What the program computes is filled in here:
the bandit's table, and advantages that the script is compared with.
"""

import json
from pathlib import Path

import torch

from mrl.advantages import group_advantages
from mrl.lab.bandit import GROUP, bandit_table, complementary, replay_sentence

HERE = Path(__file__).resolve().parent


def rounded(values: list[float]) -> list[float]:
    """To the digits that are the same on every machine."""
    return [round(value, 4) for value in values]


def examples() -> list[dict]:
    """Advantages of a group of eight with no right answer, with one, and so on to eight."""
    rows = []
    for right in range(9):
        rewards = [1.0] * right + [0.0] * (8 - right)
        group = torch.tensor([rewards])
        plain = group_advantages(group, scale_by_std=False)[0].tolist()
        scaled = group_advantages(group)[0].tolist()
        rows.append({"rewards": rewards, "scaled": rounded(scaled), "plain": rounded(plain)})
    return rows


def bandit() -> dict:
    """The bandit's table as `python mini_mrl.py bandit` prints it."""
    cells = [list(column.cells) for column in bandit_table().columns]
    modes = [list(row) for row in zip(*cells, strict=True)]
    luck = complementary()[1].reward("receiver")
    return {"G": GROUP, "p": round(luck, 4), "modes": modes, "replay": replay_sentence()}


def page() -> str:
    """The whole page, which fetches nothing."""
    facts = json.dumps({"examples": examples(), "bandit": bandit()}, indent=1)
    template = (HERE / "template.html").read_text(encoding="utf-8")
    return template.replace("{{facts}}", facts)


if __name__ == "__main__":
    (HERE / "index.html").write_text(page(), encoding="utf-8")
