"""The drawings of TUTORIAL.md and README.md: `python data/drawings/draw.py` writes them beside it.

What they show is computed by the code that they explain, or read from a run's kept metrics.
"""

import csv
import inspect
import re
import tempfile
from collections import defaultdict
from html import escape
from itertools import accumulate, pairwise, product
from pathlib import Path
from statistics import fmean
from textwrap import wrap

import torch

from mini_mrl import train_step
from mrl.advantages import group_advantages
from mrl.alignment import ByteCodec, align
from mrl.lab import figures
from mrl.lab.alignment_view import CHUNK_COLORS, visible
from mrl.lab.bandit import analyse, bandit_modes, complementary
from mrl.lab.compare import Result
from mrl.lab.compare_view import estimate, gains
from mrl.lab.quiet_run import quiet_run
from mrl.objectives import clipped_loss
from mrl.runtime.loading import load_tokenizer
from mrl.runtime.run_directory import read_metrics

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DIAL = (0, 3, 10, 30)  # how often the warm start showed the peer's reading, in percent
TEXT = r"44-29: 14-9=5, 4-1-2=1. \boxed{15}"
INK, GRAY, GREEN, RED, BLUE, ORANGE = (
    "#1b1b1b", "#707070", "#009e73", "#bb5566", "#0072b2", "#d55e00",
)  # fmt: skip


class Drawing:
    """An SVG of boxes, lines and words on a white card, so that it reads on a dark page, too."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif">',
            f"<title>{escape(title)}</title>",
            '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{GRAY}"/></marker>',
        ]
        self.box(0.5, 0.5, width - 1, height - 1, "white", "#cccccc", 6)

    def box(
        self, x: float, y: float, w: float, h: float, fill: str, edge: str = "none", round: int = 3
    ) -> None:
        """A filled rectangle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round}" fill="{fill}" '
            f'stroke="{edge}"/>'
        )

    def line(self, *points: float, color: str = GRAY, width: float = 1, style: str = "") -> None:
        """A line through x, y, x, y, ...; style: "tip" or a dash pattern."""
        extra = ' marker-end="url(#tip)"' if style == "tip" else f' stroke-dasharray="{style}"'
        numbers = " ".join(f"{value:.1f}" for value in points)
        self.parts.append(
            f'<polyline points="{numbers}" fill="none" stroke="{color}" stroke-width="{width:g}"'
            f"{extra * bool(style)}/>"
        )

    def say(
        self, x: float, y: float, words: str, color: str = INK, size: int = 13,
        at: str = "start", mono: bool = False, bold: bool = False,
    ) -> None:  # fmt: skip
        """One line of text; at: "start", "middle" or "end" of it is at x."""
        font = ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace"' * mono
        weight = ' font-weight="bold"' * bold
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{at}"'
            f' xml:space="preserve"{font}{weight}>{escape(words)}</text>'
        )

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>\n"])


def step() -> Drawing:
    """One step in six stages; what they do and their files are train_step's own comments."""
    found = re.findall(r"# (\d)\. (\w+): (.+?)  +(.+)", inspect.getsource(train_step))
    made = Drawing(780, 272, "One training step in six stages")
    made.say(16, 26, "mini_mrl.py: train_step", bold=True)
    for number, name, what, files in found:
        x = 16 + 126 * (int(number) - 1)
        crosses = name in ("publish", "collect")
        made.box(x, 42, 118, 116, "#e8f3fa" if not crosses else "#fdf0e0", "#bbbbbb")
        made.say(x + 8, 61, f"{number} {name}", size=14, bold=True)
        for row, words in enumerate(wrap(what, 18)):
            made.say(x + 8, 79 + 15 * row, words, size=11)
        for row, file in enumerate(files.split(", ")):
            made.say(x + 59, 175 + 14 * row, file, GRAY, 9, "middle", mono=True)
        if int(number) < len(found):
            made.line(x + 118, 100, x + 126, 100, style="tip")
    alone, meeting = ("a policy by itself", BLUE), ("the only place where policies meet", ORANGE)
    for x, (words, color) in ((16, alone), (268, meeting), (520, alone)):
        made.line(x, 224, x + 244, 224, color=color, width=2)
        made.say(x + 122, 240, words, color, 12, "middle")
    made.say(390, 260, "order of the policies: A B to sample, B A to learn", GRAY, 11, "middle")
    return made


def advantages() -> Drawing:
    """Three groups of four and what their members' advantages are."""
    made = Drawing(700, 214, "Advantages in three groups of four completions")
    for place, (title, rewards) in enumerate(
        (("one is right", [1, 0, 0, 0]), ("two are right", [1, 1, 0, 0]), ("none", [0, 0, 0, 0]))
    ):
        x = 30 + 230 * place
        made.say(x + 90, 24, f"{title}: rewards {' '.join(map(str, rewards))}", at="middle")
        made.line(x, 120, x + 186, 120)
        (found,) = group_advantages(torch.tensor([rewards])).tolist()
        for number, (reward, advantage) in enumerate(zip(rewards, found, strict=True)):
            left, height = x + 8 + 46 * number, 42 * abs(advantage)
            top, y = (120 - height, 115 - height) if advantage > 0 else (120, 135 + height)
            made.box(left, top, 34, height, GREEN if reward else RED)
            made.say(left + 17, y, f"{advantage:+.2f}" if height else "0", INK, 12, "middle")
        words = "up: likelier; down: less likely" if max(found) else "no advantage, no gradient"
        made.say(x + 90, 198, words, GRAY, 12, "middle")
    return made


def clip() -> Drawing:
    """The clipped loss of one token over its ratio, for both signs of its advantage."""
    made = Drawing(700, 236, "The four cases of the clip")
    ratios = (0.4, 0.8, 1.2, 1.6)
    for x0, sign in ((50, 1.0), (390, -1.0)):
        words = f"advantage {sign:+.0f}: loss over the ratio"
        made.say(x0 + 130, 24, words, at="middle", bold=True)
        found = clipped_loss(torch.tensor(ratios)[:, None], torch.tensor([[sign]]), 0.2, 0.2)
        losses = found[:, 0].tolist()
        heights = (105 - 85 * (loss + sign) for loss in losses)
        corners = list(zip((x0 + 216 * (r - 0.4) for r in ratios), heights, strict=True))
        for (left, right), (a, b) in zip(pairwise(corners), pairwise(losses), strict=True):
            flat = abs(a - b) < 1e-6
            made.line(*left, *right, color=RED if flat else GREEN, width=4)
            words, middle = "no gradient" if flat else "teaches", (left[0] + right[0]) / 2
            made.say(middle, 222, words, RED if flat else GREEN, 12, "middle", bold=True)
        for x, words in ((corners[1][0], "0.8"), (x0 + 129.6, "1"), (corners[2][0], "1.2")):
            made.line(x, 38, x, 184, style="3 3")
            made.say(x, 200, words, GRAY, 12, "middle")
    return made


def ladders() -> Drawing:
    """The byte boundaries of one text in the tiny pair's two tokenizations, and the chunks."""
    names = "qwen-tiny", "llama-tiny"
    codecs = [ByteCodec(load_tokenizer(str(ROOT / "data" / "tiny" / name))) for name in names]
    sides = [codec.token_bytes(codec.encode(TEXT)) for codec in codecs]
    chunks, unit, left = align(*sides), 19.5, 96
    made = Drawing(780, 170, "One text in two tokenizations, cut at shared byte boundaries")
    for name, tokens, y in zip(names, sides, (30, 86), strict=True):
        made.say(12, y + 19, name)
        ends = list(accumulate(map(len, tokens), initial=0))
        for token, (start, stop) in zip(tokens, pairwise(ends), strict=True):
            (number,) = (n for n, c in enumerate(chunks) if c.bytes[0] <= start < c.bytes[1])
            x, width = left + unit * start, unit * (stop - start)
            made.box(x + 1, y, width - 2, 28, CHUNK_COLORS[number % 2])
            made.say(x + width / 2, y + 19, visible(token), size=12, at="middle", mono=True)
    for chunk in chunks:
        x = left + unit * chunk.bytes[1]
        made.line(x, 22, x, 122, color=INK, width=1.5)
        made.say(x, 136, str(chunk.bytes[1]), GRAY, 10, "middle")
    made.say(12, 136, "byte", GRAY, 10)
    words = f"{len(sides[0])} tokens above, {len(sides[1])} below, {len(chunks)} chunks: "
    made.say(left, 157, words + "between two black lines both sides hold the same bytes", GRAY, 12)
    return made


def rescue() -> Drawing:
    """The first rescue of a run: what was asked, who failed, who solved it, what is trained."""
    with tempfile.TemporaryDirectory() as folder, quiet_run(folder, "prompts_per_step=4") as run:
        results = train_step(run, 1)
        name, result = next(found for found in results.items() if found[1].batch.rescues)
        (codec,) = (policy.codec for policy in run.policies if policy.name == name)
    sample = next(sample for sample in result.batch.samples if sample.loss == "imitation")
    (group,) = (group for group in result.groups if group.prompt_ids == sample.prompt_ids)
    content = sample.completion_ids[:-1]  # the last one is the end token
    made = Drawing(780, 300, "A rescue")
    made.say(20, 30, f"prompt: {group.problem.prompt}", size=14, bold=True)
    made.box(20, 46, 370, 150, "#fbeef0", RED)
    made.say(32, 66, f"{name}: {len(group.rollouts)} attempts, all wrong", RED, bold=True)
    for row, rollout in enumerate(group.rollouts[:4]):
        made.say(32, 88 + 19 * row, rollout.text[:42], size=12, mono=True)
    made.say(32, 88 + 19 * 4, f"... and {len(group.rollouts) - 4} more", GRAY, 12)
    made.say(32, 188, "advantages all 0: no gradient of its own", GRAY, 12)
    made.box(410, 46, 350, 150, "#e9f6f1", GREEN)
    made.say(422, 66, f"{sample.source}: a verified success", GREEN, bold=True)
    made.say(422, 88, codec.decode(content), size=12, mono=True)
    made.say(422, 126, "crosses as text (a SuccessRecord);", GRAY, 12)
    made.say(422, 144, "the receiver judges it again", GRAY, 12)
    x = 20.0
    for piece in [*map(visible, codec.token_bytes(content)), "end"]:
        width = 8 * len(piece) + 10
        made.box(x, 232, width, 26, CHUNK_COLORS[0] if piece != "end" else "#dddddd")
        made.say(x + width / 2, 249, piece, size=12, at="middle", mono=True)
        x += width + 3
    made.line(585, 196, 585, 245, x + 6, 245, style="tip")
    words = f"{name} learns this in its own tokens: loss = {sample.weight} * mean of -log p(token)"
    made.say(20, 282, words)
    return made


def support() -> Drawing:
    """The modes on the complementary bandits: how often an update comes, how far off it points."""
    contexts = complementary()
    made = Drawing(640, 330, "Support against bias")
    left, base, wide, tall = 70, 270, 500, 220

    def place(share: float, degrees: float) -> tuple[float, float]:
        return left + wide * share, base - tall * degrees / 60

    for degrees in (0, 20, 40, 60):
        made.line(left, place(0, degrees)[1], left + wide, place(0, degrees)[1], color="#dddddd")
        made.say(left - 8, place(0, degrees)[1] + 4, f"{degrees}°", GRAY, 12, "end")
    for share in (0, 0.5, 1):
        made.say(place(share, 0)[0], base + 20, f"{share:.0%}", GRAY, 12, "middle")
    made.say(left + wide / 2, base + 42, "support: chance that a group teaches at all", at="middle")
    made.say(16, 28, "bias: angle between the mean update and the true gradient")
    labels: dict[tuple, int] = {}  # how many names stand at a place already
    for name, mode in bandit_modes(contexts).items():
        found = analyse(mode, contexts[1])
        x, y = place(round(found.support, 3), round(found.angle, 1))
        row = labels[round(x, -1), round(y, -1)] = labels.get((round(x, -1), round(y, -1)), 0) + 1
        made.box(x - 6, y - 6, 12, 12, figures.color_of(name), round=6)
        made.say(x + 4, y + 4 - 16 * row, name, figures.color_of(name), 13, "middle", bold=True)
    return made


def dial() -> Drawing:
    """Held-out pass@1 by mode, over how much of its peer's knowledge each policy starts with."""
    found = {}
    for right, mode in product(DIAL, ("solo", "sgt", "hacpo")):
        path = "tiny-pair/table.csv" if right == 3 else f"dial/right-{right}.csv"
        if mode == "hacpo":  # in the files above it makes four updates a step
            path = "best/table.csv" if right == 3 else f"dial/one-update-{right}.csv"
        seeds = found[mode, right] = defaultdict(list)
        with (ROOT / "data" / "results" / path).open(encoding="utf-8") as file:
            wanted = {"mode": mode, "part": "heldout", "skill": "all", "metric": "pass@1"}.items()
            for row in csv.DictReader(file):
                if wanted <= row.items() and int(row["seed"]) <= 3:
                    seeds[row["seed"]].append(float(row["value"]))
    made = Drawing(640, 330, "Held-out pass@1 over the pair's complementarity")
    base, tall, low = 270, 225, 20

    def height(score: float) -> float:
        return base - tall * (score - low) / (95 - low)

    made.say(16, 28, "held-out pass@1 in percent, three seeds")
    for score in range(20, 95, 10):
        made.line(60, height(score), 560, height(score), color="#dddddd")
        made.say(52, height(score) + 4, str(score), GRAY, 12, "end")
    for place, right in enumerate(DIAL):
        made.say(100 + 140 * place, base + 20, f"{right} %", GRAY, 12, "middle")
    made.say(
        310,
        base + 42,
        "how often the warm start showed a policy the right reading of its peer's words",
        at="middle",
    )
    for shift, (mode, lower) in enumerate((("solo", 16), ("sgt", -8), ("hacpo", 5))):
        color, points = figures.color_of(mode), []
        for place, right in enumerate(DIAL):
            of_seeds = [fmean(both) for both in found[mode, right].values()]
            score, x = estimate(of_seeds), 96 + 140 * place + 4 * shift
            ends = height(score.mean - score.half), height(score.mean + score.half)
            made.line(x, ends[0], x, ends[1], color=color, width=2)
            points += [x, height(score.mean)]
        made.line(*points, color=color, width=2.5)
        made.say(points[-2] + 14, points[-1] + lower, mode, color, bold=True)
    return made


def skills(path: Path) -> None:
    """The skill that each policy lacked most, over the kept run."""
    keys = {f"skill/{skill}": f'"{skill}" problems' for skill in ("sold", "eats")}
    lines = read_metrics(ROOT / "data" / "results" / "sgt-s0")
    figures.draw_curves(lines, path, keys, "solve rate")


def best(path: Path) -> None:
    """Each mode at its best: its gain over `solo` and each policy's skills, from the kept table."""
    scores = defaultdict(dict)
    with (ROOT / "data" / "results" / "best" / "table.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["part"]:  # no cost
                key = row["part"], row["policy"], row["skill"], row["metric"]
                scores[row["mode"], int(row["seed"])][key] = float(row["value"])
    results = [Result(*run, of_run, {}, {}, []) for run, of_run in scores.items()]
    figures.draw_gains(results, gains(results), path)


DRAWINGS = (step, advantages, clip, ladders, rescue, support, dial)


def main(folder: Path = HERE) -> None:
    """Write all of them into a folder."""
    for draw in DRAWINGS:
        (folder / f"{draw.__name__}.svg").write_text(str(draw()), encoding="utf-8")
    skills(folder / "skills.png")
    best(folder / "best.png")


if __name__ == "__main__":
    main()
