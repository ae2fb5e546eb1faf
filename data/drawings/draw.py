"""Makes the drawings of TUTORIAL.md and README.md.

`python data/drawings/draw.py` writes them next to this script. What they show is computed by the
code that they explain, or read from a run's kept metrics.
"""

import inspect
import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from itertools import pairwise, starmap
from pathlib import Path
from runpy import run_path
from textwrap import fill

import torch
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from torch.nn.functional import normalize

from mini_mrl import load_team, train_step
from mrl.advantages import group_advantages
from mrl.alignment import ByteCodec, align
from mrl.lab import bandit
from mrl.lab.alignment_view import visible
from mrl.models.loading import load_tokenizer
from mrl.objectives import clipped_loss, token_ratio
from mrl.run import figures
from mrl.run.directory import read_evaluations, read_metrics, read_rescues, read_run_config
from mrl.run.view import View
from mrl.team import StepResult

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "data" / "results"
TEXT = r"44-29: 14-9=5, 4-1-2=1. \boxed{15}"
# width of a drawing; on a phone that is 390 pixels wide, text of size 13 is then 12 pixels high
WIDTH = 420
INK, GRAY, GREEN, RED = "#1b1b1b", "#707070", figures.RIGHT, figures.FAILED
POLICY_COLORS = {
    name: color
    for name, (color, _) in zip(("qwen-tiny", "llama-tiny"), figures.POLICY_LINES, strict=False)
}
# What is wrong is hatched, so that no color has to be seen.
HATCH = (
    '<defs><pattern id="wrong" width="6" height="6" patternUnits="userSpaceOnUse">'
    f'<path d="M-1 1L1 -1M0 6L6 0M5 7L7 5" stroke="{RED}" stroke-width="1.6"/></pattern></defs>'
)
CHUNK_COLORS = "#cfd8dc", "#f3e3a3"  # used in turn, so that adjacent chunks differ
HALO = "paint-order:stroke;stroke:white;stroke-width:4px"  # a name may lie on a line
BOLD, MONO = "font-weight:bold", "font-family:DejaVu Sans Mono,Menlo,Consolas,monospace"


Point = tuple[float, float]
Place = Callable[[float, float], Point]


class Drawing:
    """An SVG of boxes, lines and words on a white card, which is also readable on a dark page.

    headline: the sentence at its top, which says what to see.
    """

    def __init__(self, height: int, headline: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 30}" '
            f'width="{WIDTH}" height="{height + 30}" font-family="Helvetica, Arial, sans-serif">',
            f"<title>{escape(headline)}</title>",
            HATCH,
        ]
        self.box(0.5, 0.5, WIDTH - 1, height + 29, "white", "#cccccc")
        self.say(14, 26, headline, size=15, style=BOLD)
        self.parts.append('<g transform="translate(0 30)">')

    def box(self, x: float, y: float, w: float, h: float, fill: str, edge: str = "none") -> None:
        """A filled rectangle; one that is filled with `RED` is hatched."""
        if fill == RED:
            fill, edge = "url(#wrong)", RED
        place = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}"'
        self.parts.append(f'<rect {place} rx="3" fill="{fill}" stroke="{edge}"/>')

    def dot(self, x: float, y: float, radius: float, fill: str, edge: str = "none") -> None:
        """A filled circle."""
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        self.parts.append(f'<circle {place} fill="{fill}" stroke="{edge}"/>')

    def line(
        self, *points: Point, color: str = GRAY, width: float = 1,
        dash: str = "none", fill: str = "none",
    ) -> None:  # fmt: skip
        """A line through points. dash: lengths of dashes and gaps. fill: color of its inside."""
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        look = f'stroke="{color}" stroke-width="{width:g}" stroke-dasharray="{dash}"'
        self.parts.append(f'<polyline points="{corners}" fill="{fill}" {look}/>')

    def arrow(self, *points: Point, color: str = GRAY, width: float = 1) -> None:
        """A line with a tip at its end."""
        self.line(*points, color=color, width=width)
        (x0, y0), (x, y) = points[-2:]
        place = f"translate({x:.1f} {y:.1f}) rotate({math.degrees(math.atan2(y - y0, x - x0)):.1f})"
        self.parts.append(f'<path d="M-8 -5L1 0L-8 5z" fill="{color}" transform="{place}"/>')

    def say(
        self, x: float, y: float, words: str, color: str = INK, size: int = 13,
        at: str = "start", style: str = "",
    ) -> None:  # fmt: skip
        """Lines of text, the first of them at y.

        at: which point of each line is at x: "start", "middle" or "end".
        """
        for row, line in enumerate(words.split("\n")):
            place = f'x="{x:g}" y="{y + 19 * row:g}" font-size="{size}" fill="{color}"'
            look = f'text-anchor="{at}" xml:space="preserve" style="{style}"'
            self.parts.append(f"<text {place} {look}>{escape(line)}</text>")

    def plane(self, ground: float, tall: float, across: dict, up: dict) -> Place:
        """Draw both axes of a plot, whose lowest line is at `ground`.

        across, up: value on this axis -> its label. Returns a function (x, y) -> point.
        """
        left, right, low, high = min(across), max(across), min(up), max(up)

        def place(x: float, y: float) -> Point:
            return 46 + 346 * (x - left) / (right - left), ground - tall * (y - low) / (high - low)

        for value, words in up.items():
            self.line(place(left, value), place(right, value), color="#dddddd")
            self.say(38, place(left, value)[1] + 4, words, GRAY, at="end")
        for value, words in across.items():
            self.say(place(value, low)[0], ground + 20, words, GRAY, at="middle")
        return place

    def tokens(self, x: float, y: float, unit: float, pieces: Sequence[bytes], color: str) -> None:
        """Tokens side by side, each as wide as its number of bytes. unit: pixels per byte."""
        for piece in pieces:
            width = unit * len(piece)
            self.box(x + 1, y, width - 2, 28, color)
            self.say(x + width / 2, y + 19, visible(piece), at="middle", style=MONO)
            x += width

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</g>", "</svg>\n"])


def numbers(*values: float) -> dict[float, str]:
    """The values of an axis, each with its label."""
    return {value: f"{value:g}" for value in values}


@cache
def example() -> tuple[dict[str, StepResult], dict[str, ByteCodec]]:
    """The first step of TUTORIAL's section 4, whose first prompt is about Gus; and the codecs."""
    team = load_team("tiny", mode="sgt", seed=1, prompts_per_step=4)
    return train_step(team, 1), {policy.name: policy.codec for policy in team.policies}


def step() -> Drawing:
    """One prompt on its way through the six stages, in a lane for each policy."""
    stages = re.findall(r"# (\d)\. (\w+): (.+?)  +", inspect.getsource(train_step))
    lanes, row = (120, 272), 104
    drawing = Drawing(704, "The policies meet only in stages 3 and 4")
    results, _ = example()
    for x, name in zip(lanes, results, strict=True):
        drawing.say(x + 68, 44, name, POLICY_COLORS[name], 14, "middle", BOLD)
        for number, lines in enumerate(passed(name, results)):
            color = "#e2f3ec" if number in (2, 3) else "#f2f2f2"  # where policies exchange records
            drawing.box(x, 56 + row * number, 136, 94, color)
            drawing.say(x + 7, 76 + row * number, lines)
    drawing.say(14, 20, f"prompt: {results[name].groups[0].problem.prompt}")

    for number, name, action in stages:
        top = 56 + row * (int(number) - 1)
        drawing.say(14, top + 16, f"{number} {name}", size=15, style=BOLD)
        drawing.say(14, top + 35, fill(action, 16), GRAY)
    drawing.arrow((272, 311), (267, 311), (267, 415), (257, 415), color=GREEN, width=2)
    words = "They take turns: the left one samples first, the right one learns first"
    drawing.say(14, 692, words, GRAY)
    return drawing


def passed(name: str, results: dict[str, StepResult]) -> list[str]:
    """What each stage made of the first prompt for one of two policies, in lines of a few words."""
    result = results[name]
    (peer,) = (other for policy, other in results.items() if policy != name)
    group = result.groups[0]
    texts, right = [rollout.text for rollout in group.rollouts], int(sum(group.rewards))
    sent, received = (len(of.experiences[0].received) for of in (peer, result))  # the same prompt

    lesson = ["advantages are 0,\nso no gradient", "this prompt\nchanges nothing"]
    for sample in result.batch.samples:
        if sample.prompt_ids == group.prompt_ids and sample.needs_forward:
            text = fill(example()[1][name].decode(sample.completion_ids[:-1]), 16)
            taught = f"{sample.loss} of\n{text}\nwith weight {sample.weight}"
            lesson = [taught, "that solution\ngets likelier"]
    return [
        f"{fill(texts[0], 16)}\nand {len(texts) - 1} more",
        f"{right} of {len(texts)} are\ncorrect",
        f"{sent} solutions" if sent else "no solution,\nso no record",
        f"{received} solutions,\njudged again" if received else "nothing to collect",
        *lesson,
    ]


def advantages() -> Drawing:
    """Three groups of four and what their members' advantages are."""
    drawing = Drawing(340, "A group teaches only if its rewards differ")
    groups = {
        "one is correct": [1, 0, 0, 0],
        "two are correct": [1, 1, 0, 0],
        "none is correct": [0] * 4,
    }
    for place, (title, rewards) in enumerate(groups.items()):
        (of_group,) = group_advantages(torch.tensor([rewards])).tolist()
        words = "up: likelier\ndown: less likely" if any(of_group) else "no advantage,\nno gradient"
        ground = 82 + 112 * place
        drawing.say(14, ground - 36, title, style=BOLD)
        drawing.say(14, ground - 16, f"rewards {' '.join(map(str, rewards))}")
        drawing.say(14, ground + 4, words, GRAY)
        drawing.line((162, ground), (406, ground))
        for number, (reward, advantage) in enumerate(zip(rewards, of_group, strict=True)):
            left, height = 168 + 60 * number, 32 * abs(advantage)
            top, y = (ground - height, -5 - height) if advantage > 0 else (ground, 16 + height)
            drawing.box(left, top, 52, height, GREEN if reward else RED)
            drawing.say(
                left + 26, ground + y, f"{advantage:+.2f}" if advantage else "0", at="middle"
            )
    return drawing


def importance() -> Drawing:
    """Ten completions of the old weights, and the same ten, each as tall as its factor."""
    drawing = Drawing(436, "Factors make old completions stand for new ones")
    old, now = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.5, 0.2, 0.2, 0.1]])
    (ratios,) = token_ratio(now.log()[None], old.log()[None], torch.ones(1, 4, dtype=torch.bool))
    drawing.say(14, 24, "ten completions of the old weights")
    drawing.say(14, 146, "answer\nbefore\nfactor", GRAY)
    words = "the same ten, each as tall as its factor\n(frame: ten completions of the new weights)"
    drawing.say(14, 212, words)
    drawing.say(14, 394, "now", GRAY)
    for number, answer in enumerate(
        ("15", "8", "2", "18")
    ):  # TUTORIAL's completions: one is correct
        x, color = 82 + 84 * number, RED if number else GREEN
        before, ratio, after = old[number].item(), ratios[number].item(), now[number].item()
        for base, unit in ((128, 22), (376, 22 * ratio)):
            for block in range(1, 1 + round(10 * before)):
                drawing.box(x, base + 1 - unit * block, 64, unit - 2, color)
        drawing.box(x - 4, 376 - 220 * after, 72, 220 * after, "none", INK)
        drawing.say(x + 32, 146, f"{answer}\n{before:.1f}\n× {ratio:.2f}", at="middle")
        drawing.say(x + 32, 394, f"{after:.1f}", at="middle")

    words = f"correct: before {old[0]:.2f}, weighted {old[0] * ratios[0]:.2f}, now {now[0]:.2f}"
    drawing.say(14, 422, words)
    return drawing


def clip() -> Drawing:
    """The clipped loss of one token over its ratio, for both signs of its advantage."""
    drawing = Drawing(406, "A token that moved far enough stops teaching")
    ratios = (0.4, 0.8, 1.2, 1.6)
    for top, sign in ((0, 1.0), (200, -1.0)):
        drawing.say(14, top + 24, f"advantage {sign:+.0f}: the loss at each ratio", style=BOLD)
        column = clipped_loss(torch.tensor(ratios)[:, None], torch.tensor([[sign]]), 0.2, 0.2)
        losses = column[:, 0].tolist()
        place = drawing.plane(top + 152, 84, numbers(*ratios, 1), numbers(*losses))
        for start, end in pairwise(zip(ratios, losses, strict=True)):
            flat = abs(start[1] - end[1]) < 1e-6
            color, words = (GRAY, "no gradient") if flat else (INK, "teaches")
            dash = "3 5" if flat else "none"
            drawing.line(place(*start), place(*end), color=color, width=4, dash=dash)
            middle, _ = place((start[0] + end[0]) / 2, 0)
            drawing.say(middle, top + 192, words, color, at="middle", style=BOLD)

        x, y = place(1, -sign)
        drawing.dot(x, y, 6, "white", INK)
        drawing.arrow((x, top + 52), (x + 58 * sign, top + 52))
        side = "end" if sign > 0 else "start"
        drawing.say(x - 8 * sign, top + 56, "pushed this way", GRAY, at=side)
    return drawing


def ladders() -> Drawing:
    """The byte boundaries of one text in the tiny pair's two tokenizations, and the chunks."""
    names = "qwen-tiny", "llama-tiny"
    codecs = [ByteCodec(load_tokenizer(str(ROOT / "data" / "tiny" / name))) for name in names]
    sides = [codec.token_bytes(codec.encode(TEXT)) for codec in codecs]
    chunks = align(*sides)
    drawing = Drawing(180, "Chunks end where both tokenizations agree")
    for number, chunk in enumerate(chunks):
        left, right = (14 + 11.5 * place for place in chunk.bytes)
        color = CHUNK_COLORS[number % 2]
        drawing.tokens(left, 20, 11.5, sides[0][slice(*chunk.source)], color)
        drawing.tokens(left, 60, 11.5, sides[1][slice(*chunk.receiver)], color)
        drawing.line((right, 16), (right, 96), color=INK, width=2)
        drawing.say(right, 112, str(chunk.bytes[1]), GRAY, at="middle")
    words = f"above {len(sides[0])} tokens of {names[0]}, below {len(sides[1])} of {names[1]};"
    drawing.say(14, 142, f"{words}\n{len(chunks)} chunks, numbers are bytes from the beginning")
    return drawing


def rescue() -> Drawing:
    """The first rescue of a run: what was asked, who failed, who solved it, what is trained."""
    results, codecs = example()
    name, result = next(found for found in results.items() if found[1].rescues)
    sample = next(sample for sample in result.batch.samples if sample.loss == "imitation")
    (group,) = (group for group in result.groups if group.prompt_ids == sample.prompt_ids)
    content = sample.completion_ids[:-1]  # the last one is the end token

    drawing = Drawing(386, "When all attempts fail, a peer's solution is imitated")
    drawing.say(14, 24, f"prompt: {group.problem.prompt}", style=BOLD)
    drawing.box(14, 40, 392, 128, "#fbeef0", RED)
    drawing.say(
        26,
        60,
        f"{name}: {len(group.rollouts)} attempts, all wrong",
        POLICY_COLORS[name],
        style=BOLD,
    )
    words = "\n".join(rollout.text[:46] for rollout in group.rollouts[:3])
    drawing.say(26, 82, words, style=MONO)
    rest = f"... and {len(group.rollouts) - 3} more\nadvantages all 0: no gradient of its own"
    drawing.say(26, 139, rest, GRAY)

    drawing.box(14, 182, 392, 90, "#e9f6f1", GREEN)
    words = f"{sample.source}: a verified solution"
    drawing.say(26, 202, words, POLICY_COLORS[sample.source], style=BOLD)
    drawing.say(26, 224, codecs[name].decode(content), style=MONO)
    drawing.say(26, 243, "is sent as text; a program judges it\nagain where it arrives", GRAY)

    drawing.arrow((210, 272), (210, 306), color=GREEN, width=2)
    drawing.tokens(14, 308, 12, [*codecs[name].token_bytes(content), b"<end>"], CHUNK_COLORS[0])
    words = f"{name} learns this in its own tokens:\nloss = {sample.weight} * mean of -log p(token)"
    drawing.say(14, 356, words)
    return drawing


def toy() -> Drawing:
    """J of TUTORIAL's policy over four completions: a start with some luck, and one with none."""
    drawing = Drawing(478, "If luck never comes, only a peer helps")
    ways = {"solo": "alone", "replay": "replay", "sgt": "peer"}
    # dashed and dotted, so that no color has to be seen; replay may cover the curve of solo
    dashes = {"solo": "2 4", "replay": "6 6", "sgt": "none"}
    drawing.say(14, 22, "J, the share of correct completions, at each step")
    for x, (mode, sharing) in zip((46, 160, 284), ways.items(), strict=True):
        color = figures.color_of(mode)
        drawing.line((x, 46), (x + 34, 46), color=color, width=3, dash=dashes[mode])
        drawing.say(x + 40, 50, sharing, color, 14, style=BOLD)

    one_learner = run_path(str(ROOT / "data" / "page" / "two_learners.py"))["one_learner"]
    for start, ground in ((-3.0, 240), (-12.0, 446)):
        curves = {mode: one_learner(start, sharing) for mode, sharing in ways.items()}
        words = f"at first 1 completion in {1 / curves['solo'][0]:,.0f} is correct"
        drawing.say(46, ground - 146, words, style=BOLD)
        place = drawing.plane(ground, 130, numbers(*range(0, 401, 100)), numbers(0, 0.5, 1))
        for mode, curve in curves.items():
            corners = starmap(place, enumerate(curve))
            drawing.line(*corners, color=figures.color_of(mode), width=3, dash=dashes[mode])
    return drawing


def bandit_noise() -> Drawing:
    """Each update that a group may give in the blind spot, as a circle, and the mean update."""
    contexts = bandit.complementary()
    context, modes = contexts[1], bandit.bandit_modes(contexts)
    uphill = normalize(context.gradient(), dim=0)
    across = torch.tensor([0, 0, -1, 1]) - (uphill[3] - uphill[2]) * uphill
    axes = torch.stack([normalize(across, dim=0), uphill])  # from one wrong action to the other

    drawing = Drawing(384, "Noise hides the mean of xgrpo, but not that of sgt")
    words = "circle: the update of one group; its area is its chance\n(under 1 in 500: left out)"
    drawing.say(14, 24, f"{words}; arrow: the mean of all groups")
    drawing.arrow((160, 170), (160, 130))
    drawing.say(152, 154, "uphill", GRAY, at="end")
    for name, x in {"solo": 72, "xgrpo": 275, "sgt": 372}.items():
        color, chances = figures.color_of(name), defaultdict(float)  # point -> probability
        for update, chance in bandit.updates(modes[name], context, bandit.GROUP):
            right, up = (230 * axes @ update).round().tolist()
            chances[x + right, 220 - up] += chance
        for end, chance in chances.items():
            if chance > 0.002:
                drawing.line((x, 220), end, color=color)
                drawing.dot(*end, 18 * math.sqrt(chance), "white", color)
        mean, *_ = bandit.moments(modes[name], context)
        right, up = (230 * axes @ mean).tolist()
        drawing.arrow((x, 220), (x + right, 220 - up), color=INK, width=3)

        drawing.say(x, 334, name, color, 14, "middle", BOLD)
        drawing.say(x, 354, f"{bandit.analyze(modes[name], context).groups:.2g}", at="middle")
    words = "groups needed until the mean stands out from its noise"
    drawing.say(210, 374, words, GRAY, at="middle")
    return drawing


def support() -> Drawing:
    """The modes in the bandit's blind spot: the groups that they need, and their bias angle."""
    contexts = bandit.complementary()
    drawing = Drawing(350, "sgt, sft and naive close it with few groups")

    drawing.say(14, 22, "angle between the mean update and the true gradient")
    degrees = {angle: f"{angle}°" for angle in (0, 30, 60, 90, 120)}
    place = drawing.plane(250, 200, {-1: "0.1", 0: "1", 1: "10", 2: "100"}, degrees)
    drawing.line(place(-1, 90), place(2, 90), color="#999999")
    drawing.say(46, place(0, 93)[1], "above this line: downhill", GRAY)
    drawing.say(219, 292, "groups needed until the update stands out", at="middle")
    drawing.say(14, 318, "replay: nothing until luck has come once, then as sgt", GRAY)
    drawing.say(14, 337, "naive: its bias is on prompts that are solved already", GRAY)

    names = defaultdict(list)  # point -> modes, because some modes share a point
    every_mode = bandit.bandit_modes(contexts)
    for name in bandit.PUBLISHED:
        of_mode = bandit.analyze(every_mode[name], contexts[1])
        x, y = place(math.log10(of_mode.groups), of_mode.angle)
        names[round(x), round(y)].append(name)
    lift, last = 0, (0.0, 0.0)
    for (x, y), modes in sorted(names.items()):
        near = x - last[0] < 90 and abs(y - last[1]) < 20
        lift, last = lift + 20 + max(0, y - last[1]) if near else 0, (x, y)
        color = figures.color_of(modes[0])
        drawing.parts.append(f'<g data-modes="{" ".join(modes)}">')  # the page highlights one group
        drawing.dot(x, y, 6, color)
        drawing.line((x, y - 8), (x, y - 16 - lift), color=color)
        inside = "end" if x > 340 else "middle"  # keeps the name inside the picture
        drawing.say(x, y - 20 - lift, ", ".join(modes), color, 14, inside, f"{BOLD};{HALO}")
        drawing.parts.append("</g>")
    return drawing


def skills(path: Path) -> None:
    """One blind spot of each policy over a run: with a peer, with replay, alone."""
    runs = {mode: read_metrics(RESULTS / f"{mode}-s0") for mode in ("solo", "replay", "sgt")}
    figure, panels = figures.new_figure(figures.WIDTH, 6.4, rows=2)
    blind_spots = ("qwen-tiny", "days", "llama-tiny"), ("llama-tiny", "bags", "qwen-tiny")
    for axes, (learner, skill, peer) in zip(panels, blind_spots, strict=True):
        ends = []
        for mode, policy, label in (
            ("solo", learner, "RL alone"), ("replay", learner, "replay"),
            ("sgt", learner, "with peer"), ("sgt", peer, "the peer"),
        ):  # fmt: skip
            window = figures.COMPARED_WINDOW
            steps, rates = figures.series(runs[mode], policy, f"skill/{skill}", window)
            color, style = (GRAY, ":") if policy == peer else (figures.color_of(mode), "-")
            axes.plot(steps, rates, color=color, linestyle=style, linewidth=2)
            ends.append((rates[-1], label, color))
        figures.name_ends(axes, ends)
        axes.set_title(f'{learner} on its blind spot "{skill}"')
        axes.set(ylim=(-0.02, 1.02), xlabel="step", ylabel="share of correct completions")

    figure.suptitle(
        "With a peer, these blind spots close soon;\nalone, one waits for luck, and one stays"
    )
    figures.save_figure(figure, path)


def kinds(path: Path) -> None:
    """The kinds of groups of one policy over a run, with RL alone and with its peer."""
    figure, panels = figures.new_figure(figures.WIDTH, 6.6, rows=2)
    shares = {  # in the order of the stack
        "groups/all_fail": ("all fail: no gradient", "white"),
        "groups/mixed": ("mixed: they teach", figures.POLICY_LINES[0][0]),
        "groups/all_pass": ("all pass: no gradient", "#dddddd"),
    }
    titles = {"solo": "RL alone (solo)", "sgt": "with its peer (sgt)"}
    for axes, (mode, title) in zip(panels, titles.items(), strict=True):
        lines = read_metrics(RESULTS / f"{mode}-s0")
        stacked = []
        for share in shares:
            steps, values = figures.series(lines, "qwen-tiny", share, figures.COMPARED_WINDOW)
            stacked.append(values)
        labels, colors = zip(*shares.values(), strict=True)
        areas = axes.stackplot(steps, stacked, colors=colors)
        areas[0].set(hatch="///", edgecolor=RED)  # hatched, so that no color has to be seen
        axes.set(title=title, ylim=(0, 1), xlim=(steps[0], steps[-1]))
        axes.set(xlabel="step", ylabel="share of groups")

    figure.suptitle(
        "All-fail groups of qwen-tiny: alone they\nstay to the end, with a peer half are left"
    )
    figure.legend(areas, labels, ncols=2, loc="outside lower center", frameon=False)
    figures.save_figure(figure, path)


LIVE_STEP = 60  # of the kept run, for the picture of the live view


def live_narrow() -> str:
    """`live` for a phone, where the letters of 80 columns would be 7 pixels high."""
    return live(columns=48, rows=28)


def live(columns: int = 80, rows: int = 24) -> str:
    """The live view of the kept run, as a terminal of this size shows it, as an SVG."""
    directory = RESULTS / "sgt-s0"
    config = read_run_config(directory)
    file = io.StringIO()
    console = Console(width=columns, height=rows, file=file, force_terminal=True, record=True)
    names = [policy.name for policy in config.policies]
    view = View(Console(quiet=True), names, config.steps)
    view.scored(read_evaluations(directory)["before"])
    lines, rescues = read_metrics(directory), read_rescues(directory)
    # the machine had other work to do during this run: its fastest step is nearest to its own pace
    pace = {"time/step_s": min(line["time/step_s"] for line in lines)}
    for step in range(1, LIVE_STEP + 1):
        of_step = {line["policy"]: line | pace for line in lines if line["step"] == step}
        view.step(step, of_step, [rescue for rescue in rescues if rescue["step"] == step])
    view.console, view.title = console, f"mini-mrl: {config.mode}, seed {config.seed}"
    console.print(view.render())
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # not fetched
    return console.export_svg(title="A bar for each skill", code_format=form, unique_id="live")


DRAWINGS = (
    step, advantages, importance, clip, ladders, rescue, toy, bandit_noise, support, live,
    live_narrow,
)  # fmt: skip


def main(folder: Path = HERE) -> None:
    """Write all drawings into a folder."""
    for draw in DRAWINGS:
        (folder / f"{draw.__name__}.svg").write_text(str(draw()), encoding="utf-8")
    skills(folder / "skills.png")
    kinds(folder / "kinds.png")


if __name__ == "__main__":
    main()
