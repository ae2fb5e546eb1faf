"""The drawings of TUTORIAL.md and README.md: `python data/drawings/draw.py` writes them beside it.

What they show is computed by the code that they explain, or read from a run's kept metrics.
"""

import csv
import inspect
import io
import math
import re
from collections import defaultdict
from functools import cache
from html import escape
from itertools import accumulate, chain, pairwise, product
from pathlib import Path
from statistics import fmean
from textwrap import wrap

import torch
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from mini_mrl import load_team, train_step
from mrl.advantages import group_advantages
from mrl.alignment import ByteCodec, align
from mrl.lab import figures
from mrl.lab.alignment_view import visible
from mrl.lab.bandit import analyse, bandit_modes, complementary
from mrl.lab.compare_view import estimate
from mrl.objectives import clipped_loss
from mrl.runtime.loading import load_tokenizer
from mrl.runtime.run_directory import read_evaluations, read_metrics, read_rescues, read_run_config
from mrl.runtime.view import View
from mrl.team import StepResult

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "data" / "results"
DIAL = (0, 1, 3, 10, 30)  # how often the warm start showed the peer's reading, in percent
DIAL_MODES = {"solo": "alone (solo)", "replay": "+ memory (replay)", "sgt": "+ peer (sgt)",
              "hacpo": "hacpo, no lower end"}  # fmt: skip
TEXT = r"44-29: 14-9=5, 4-1-2=1. \boxed{15}"
INK, GRAY, GREEN, RED = "#1b1b1b", "#707070", figures.RIGHT, figures.FAILED
CHUNK_COLORS = "#cfd8dc", "#f3e3a3"  # neighbours
TIP_COLORS = (GRAY, GREEN)  # those that an arrow may have


class Drawing:
    """An SVG of boxes, lines and words on a white card, so that it reads on a dark page, too.

    headline: the sentence above it that says what to see.
    """

    def __init__(self, width: int, height: int, headline: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 30}" '
            f'width="{width}" height="{height + 30}" font-family="Helvetica, Arial, sans-serif">',
            f"<title>{escape(headline)}</title>",
        ]
        for color in TIP_COLORS:
            self.parts.append(
                f'<marker id="tip{color[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
                'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
                f'<path d="M0 0L8 4L0 8z" fill="{color}"/></marker>'
            )
        self.box(0.5, 0.5, width - 1, height + 29, "white", "#cccccc", 6)
        self.say(16, 26, headline, size=15, bold=True)
        self.parts.append('<g transform="translate(0 30)">')

    def box(
        self, x: float, y: float, w: float, h: float, fill: str, edge: str = "none", round: int = 3
    ) -> None:
        """A filled rectangle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round}" fill="{fill}" '
            f'stroke="{edge}"/>'
        )

    def line(self, *points: float, color: str = GRAY, width: float = 1, style: str = "") -> None:
        """A line through x, y, x, y, ...; style: "tip" (in `TIP_COLORS`) or a dash pattern."""
        extra = ""
        if style:
            extra = f' stroke-dasharray="{style}"'
        if style == "tip":
            extra = f' marker-end="url(#tip{color[1:]})"'
        numbers = " ".join(f"{value:.1f}" for value in points)
        self.parts.append(
            f'<polyline points="{numbers}" fill="none" stroke="{color}" stroke-width="{width:g}"'
            f"{extra}/>"
        )

    def area(self, *points: float, color: str) -> None:
        """A pale area with corners x, y, x, y, ..."""
        numbers = " ".join(f"{value:.1f}" for value in points)
        self.parts.append(f'<polygon points="{numbers}" fill="{color}" fill-opacity="0.15"/>')

    def say(
        self, x: float, y: float, words: str, color: str = INK, size: int = 13,
        at: str = "start", mono: bool = False, bold: bool = False,
    ) -> None:  # fmt: skip
        """One line of text; at: "start", "middle" or "end" of it is at x."""
        style = ""
        if mono:
            style += ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace"'
        if bold:
            style += ' font-weight="bold"'
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{at}"'
            f' xml:space="preserve"{style}>{escape(words)}</text>'
        )

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</g>", "</svg>\n"])


@cache
def example() -> tuple[dict[str, StepResult], dict[str, ByteCodec]]:
    """The first step of TUTORIAL's section 4, whose first prompt is Gus's; and the codecs."""
    team = load_team("tiny", mode="sgt", seed=1, prompts_per_step=4)
    return train_step(team, 1), {policy.name: policy.codec for policy in team.policies}


def step() -> Drawing:
    """One prompt on its way through the six stages, in a lane for each policy."""
    stages = re.findall(r"# (\d)\. (\w+): (.+?)  +", inspect.getsource(train_step))
    lanes, row = (116, 280), 96
    drawing = Drawing(440, 664, "Only in stages 3 and 4 do the policies meet")
    results, _ = example()
    for x, (name, result) in zip(lanes, results.items(), strict=True):
        drawing.say(x + 72, 44, name, size=14, at="middle", bold=True)
        for number, lines in enumerate(passed(name, results)):
            crosses = number in (2, 3)
            drawing.box(x, 56 + row * number, 144, 86, "#e2f3ec" if crosses else "#f2f2f2")
            for place, words in enumerate(lines):
                mono = "=" in words or "{" in words
                y = 76 + row * number + 18 * place
                drawing.say(x + 7, y, words, size=12 if mono else 13, mono=mono)
        problem = result.groups[0].problem
    drawing.say(14, 20, f"prompt: {problem.prompt}", size=13)

    for number, name, action in stages:
        top = 56 + row * (int(number) - 1)
        drawing.say(14, top + 16, f"{number} {name}", size=15, bold=True)
        for place, words in enumerate(wrap(action, 14)):
            drawing.say(14, top + 34 + 16 * place, words, GRAY, 12)
    publish, collect = 56 + row * 2 + 43, 56 + row * 3 + 43
    drawing.line(280, publish, 270, publish, 270, collect, 261, collect, color=GREEN, width=2,
                 style="tip")  # fmt: skip
    words = "In turn: the left one samples first, the right one learns first"
    drawing.say(14, 650, words, GRAY, 12)
    return drawing


def passed(name: str, results: dict[str, StepResult]) -> list[list[str]]:
    """What the first prompt was in each stage for one of two policies, in lines of a few words."""
    result = results[name]
    (peer,) = (other for policy, other in results.items() if policy != name)
    group = result.groups[0]
    texts, right = [rollout.text for rollout in group.rollouts], int(sum(group.rewards))
    sent, received = (len(of.believed[group.problem.id]) for of in (peer, result))

    taught = ["advantages are 0,", "so no sample of", "it has a gradient"]
    learnt = ["this prompt", "changes nothing"]
    for sample in result.batch.samples:
        if sample.prompt_ids == group.prompt_ids and sample.needs_forward:
            text = example()[1][name].decode(sample.completion_ids[:-1])
            taught = [f"{sample.loss} of", *wrap(text, 18), f"with weight {sample.weight}"]
            learnt = ["that text", "gets likelier"]
    return [
        [*wrap(texts[0], 18), f"and {len(texts) - 1} more"],
        [f"{right} of {len(texts)} are right"],
        [f"{sent} successes"] if sent else ["no success,", "so no record"],
        [f"{received} successes,", "judged again"] if received else ["nothing to collect"],
        taught,
        learnt,
    ]


def advantages() -> Drawing:
    """Three groups of four and what their members' advantages are."""
    drawing = Drawing(556, 226, "A group teaches only where its completions differ in reward")
    groups = (("one is right", [1, 0, 0, 0]), ("two are right", [1, 1, 0, 0]), ("none", [0] * 4))
    for place, (title, rewards) in enumerate(groups):
        x, ground = 18 + 182 * place, 134
        drawing.say(x + 78, 22, title, at="middle", bold=True)
        drawing.say(x + 78, 40, f"rewards {' '.join(map(str, rewards))}", at="middle")
        drawing.line(x, ground, x + 156, ground)

        (of_group,) = group_advantages(torch.tensor([rewards])).tolist()
        for number, (reward, advantage) in enumerate(zip(rewards, of_group, strict=True)):
            left, height = x + 4 + 38 * number, 42 * abs(advantage)
            top, y = (ground - height, ground - 5 - height)
            if advantage <= 0:
                top, y = ground, ground + 15 + height
            drawing.box(left, top, 34, height, GREEN if reward else RED)
            drawing.say(left + 17, y, f"{advantage:+.2f}" if height else "0", INK, 12, "middle")

        words = "up: likelier; down: less likely" if max(of_group) else "no advantage, no gradient"
        drawing.say(x + 78, 212, words, GRAY, 12, "middle")
    return drawing


def clip() -> Drawing:
    """The clipped loss of one token over its ratio, for both signs of its advantage."""
    drawing = Drawing(540, 236, "A token that has moved far enough stops teaching")
    ratios = (0.4, 0.8, 1.2, 1.6)
    for x0, sign in ((34, 1.0), (290, -1.0)):
        words = f"advantage {sign:+.0f}: loss over the ratio"
        drawing.say(x0 + 108, 24, words, at="middle", bold=True)

        column = clipped_loss(torch.tensor(ratios)[:, None], torch.tensor([[sign]]), 0.2, 0.2)
        losses = column[:, 0].tolist()
        corners = []
        for ratio, loss in zip(ratios, losses, strict=True):
            corners.append((x0 + 180 * (ratio - 0.4), 115 - 85 * (loss + sign)))
        for (left, right), (a, b) in zip(pairwise(corners), pairwise(losses), strict=True):
            flat = abs(a - b) < 1e-6
            drawing.line(*left, *right, color=RED if flat else GREEN, width=4)
            words, middle = "no gradient" if flat else "teaches", (left[0] + right[0]) / 2
            drawing.say(middle, 222, words, RED if flat else GREEN, 12, "middle", bold=True)

        start = x0 + 108  # the ratio is 1 there
        for x, words in ((corners[1][0], "0.8"), (start, "1"), (corners[2][0], "1.2")):
            drawing.line(x, 58, x, 184, style="3 3")
            drawing.say(x, 200, words, GRAY, 12, "middle")
        drawing.box(start - 5, 110, 10, 10, INK, round=5)
        drawing.line(start, 52, start + 60 * sign, 52, style="tip")
        side = "end" if sign > 0 else "start"
        drawing.say(start - 8 * sign, 56, "pushed this way", GRAY, 12, side)
    return drawing


def ladders() -> Drawing:
    """The byte boundaries of one text in the tiny pair's two tokenizations, and the chunks."""
    names = "qwen-tiny", "llama-tiny"
    codecs = [ByteCodec(load_tokenizer(str(ROOT / "data" / "tiny" / name))) for name in names]
    sides = [codec.token_bytes(codec.encode(TEXT)) for codec in codecs]
    chunks, unit, left = align(*sides), 14.5, 84
    drawing = Drawing(592, 170, "Between two black lines both tokenizations hold the same bytes")
    for name, tokens, y in zip(names, sides, (30, 86), strict=True):
        drawing.say(12, y + 19, name)
        ends = list(accumulate(map(len, tokens), initial=0))
        for token, (start, stop) in zip(tokens, pairwise(ends), strict=True):
            (number,) = (n for n, c in enumerate(chunks) if c.bytes[0] <= start < c.bytes[1])
            x, width = left + unit * start, unit * (stop - start)
            drawing.box(x + 1, y, width - 2, 28, CHUNK_COLORS[number % 2])
            drawing.say(x + width / 2, y + 19, visible(token), size=12, at="middle", mono=True)

    for chunk in chunks:
        x = left + unit * chunk.bytes[1]
        drawing.line(x, 22, x, 122, color=INK, width=1.5)
        drawing.say(x, 138, str(chunk.bytes[1]), GRAY, 12, "middle")
    drawing.say(12, 138, "byte", GRAY, 12)
    words = f"{len(sides[0])} tokens above, {len(sides[1])} below, {len(chunks)} chunks"
    drawing.say(left, 160, words, GRAY, 12)
    return drawing


def rescue() -> Drawing:
    """The first rescue of a run: what was asked, who failed, who solved it, what is trained."""
    results, codecs = example()
    name, result = next(found for found in results.items() if found[1].batch.rescues)
    codec = codecs[name]
    sample = next(sample for sample in result.batch.samples if sample.loss == "imitation")
    (group,) = (group for group in result.groups if group.prompt_ids == sample.prompt_ids)
    content = sample.completion_ids[:-1]  # the last one is the end token

    drawing = Drawing(520, 296, "Where all attempts fail, a peer's solution is imitated")
    drawing.say(16, 28, f"prompt: {group.problem.prompt}", size=14, bold=True)
    drawing.box(16, 46, 250, 150, "#fbeef0", RED)
    drawing.say(28, 66, f"{name}: {len(group.rollouts)} attempts, all wrong", RED, bold=True)
    for row, rollout in enumerate(group.rollouts[:4]):
        drawing.say(28, 88 + 19 * row, rollout.text[:31], size=12, mono=True)
    drawing.say(28, 88 + 19 * 4, f"... and {len(group.rollouts) - 4} more", GRAY, 12)
    drawing.say(28, 188, "advantages all 0: no gradient of its own", GRAY, 12)

    drawing.box(282, 46, 222, 150, "#e9f6f1", GREEN)
    drawing.say(294, 66, f"{sample.source}: a verified success", GREEN, bold=True)
    drawing.say(294, 88, codec.decode(content), size=12, mono=True)
    drawing.say(294, 126, "crosses as text (a SuccessRecord);", GRAY, 12)
    drawing.say(294, 144, "the receiver judges it again", GRAY, 12)

    x = 16.0
    for piece in [*map(visible, codec.token_bytes(content)), "end"]:
        width = 8 * len(piece) + 10
        drawing.box(x, 232, width, 26, CHUNK_COLORS[0] if piece != "end" else "#dddddd")
        drawing.say(x + width / 2, 249, piece, size=12, at="middle", mono=True)
        x += width + 3
    drawing.line(430, 196, 430, 245, x + 6, 245, style="tip")
    words = f"{name} learns this in its own tokens: loss = {sample.weight} * mean of -log p(token)"
    drawing.say(16, 282, words)
    return drawing


def support() -> Drawing:
    """The modes in the blind spot of the bandits: groups needed, and how far off they point."""
    contexts = complementary()
    drawing = Drawing(430, 350, "What opens a blind spot: few groups needed")
    left, base, wide, tall = 50, 250, 350, 200

    def place(groups: float, degrees: float) -> tuple[float, float]:
        return left + wide * (math.log10(groups) + 1) / 3, base - tall * degrees / 120

    drawing.say(12, 22, "angle between the mean update and the true gradient")
    for degrees in (0, 30, 60, 90, 120):
        y = place(1, degrees)[1]
        drawing.line(left, y, left + wide, y, color="#999999" if degrees == 90 else "#dddddd")
        drawing.say(left - 8, y + 4, f"{degrees}°", GRAY, at="end")
    for groups in (0.1, 1, 10, 100):
        drawing.say(place(groups, 0)[0], base + 20, f"{groups:g}", GRAY, at="middle")
    drawing.say(
        left + wide / 2, base + 42, "groups needed until the update stands out", at="middle"
    )
    drawing.say(left, place(1, 93)[1], "above this line: downhill", GRAY)
    drawing.say(12, base + 68, "replay: nothing until luck has come once, then as sgt", GRAY)
    drawing.say(12, base + 88, "naive: its price is on prompts that are solved already", GRAY)

    names = defaultdict(list)  # by place: some modes share one
    for name, mode in bandit_modes(contexts).items():
        of_mode = analyse(mode, contexts[1])
        x, y = place(of_mode.groups, of_mode.angle)
        names[round(x), round(y)].append(name)
    lift, last = 0, (0.0, 0.0)
    for (x, y), modes in sorted(names.items()):
        near = x - last[0] < 90 and abs(y - last[1]) < 20
        lift, last = lift + 20 if near else 0, (x, y)
        color = figures.color_of(modes[0])
        drawing.parts.append(f'<g data-modes="{" ".join(modes)}">')  # the page lights one of them
        drawing.box(x - 6, y - 6, 12, 12, color, round=6)
        drawing.line(x, y - 8, x, y - 16 - lift, color=color)
        inside = "end" if x > left + wide - 60 else "middle"  # of the picture
        drawing.say(x, y - 20 - lift, ", ".join(modes), color, 14, inside, bold=True)
        drawing.parts.append("</g>")
    return drawing


def dial() -> Drawing:
    """Held-out pass@1 by mode, over how often a policy is right by its own luck at the start."""
    scores = dial_scores()
    lucks = sorted({right for _, right in scores})
    drawing = Drawing(430, 420, "A peer adds most where luck never comes")
    base, tall, low = 268, 200, 30

    def place(luck: int, score: float) -> tuple[float, float]:
        x = 70 + 320 * lucks.index(luck) / (len(lucks) - 1)
        return x, base - tall * (score - low) / (95 - low)

    drawing.say(12, 22, "held-out pass@1 in percent, 3 seeds, 95 % intervals")
    for score in range(low, 95, 20):
        y = place(lucks[0], score)[1]
        drawing.line(42, y, 410, y, color="#dddddd")
        drawing.say(36, y + 4, str(score), GRAY, at="end")
    for right in lucks:
        drawing.say(place(right, 0)[0], base + 20, f"{right} %", GRAY, at="middle")
    words = "how often the warm start showed the peer's reading"
    drawing.say(215, base + 44, words, at="middle")

    corners = {}  # of each mode's curve
    for shift, (mode, words) in enumerate(DIAL_MODES.items()):
        color = figures.color_of(mode)
        corners[mode] = []
        for luck in lucks:
            score = estimate(scores[mode, luck])
            x, y = place(luck, score.mean)
            half = place(luck, low)[1] - place(luck, low + score.half)[1]
            x += 4 * shift - 6
            drawing.line(x, y - half, x, y + half, color=color, width=2)
            drawing.box(x - 3, y - 3, 6, 6, color)
            corners[mode].append((x, y))
        style = "5 4" if mode == "hacpo" else ""
        drawing.line(*chain.from_iterable(corners[mode]), color=color, width=2.5, style=style)
        left, row = 12 + 200 * (shift % 2), 352 + 24 * (shift // 2)
        drawing.say(left, row, words, color, 14, bold=True)

    for lower, upper in pairwise(("solo", "replay", "sgt")):
        between = [*corners[upper], *reversed(corners[lower])]
        drawing.area(*chain.from_iterable(between), color=figures.color_of(upper))
    return drawing


def dial_scores() -> dict[tuple[str, int], list[float]]:
    """(mode, own luck in percent) -> held-out pass@1 of each of the first three seeds.

    Only of the pairs on which all modes were run.
    """
    scores = {}
    for right, mode in product(DIAL, DIAL_MODES):
        name = f"no-band-{right}" if mode == "hacpo" else f"right-{right}"
        path = RESULTS / "dial" / f"{name}.csv"
        by_seed = defaultdict(list)
        for row in csv.DictReader(path.open(encoding="utf-8")) if path.exists() else ():
            key = row["mode"], row["part"], row["skill"], row["metric"]
            if key == (mode, "heldout", "all", "pass@1") and int(row["seed"]) <= 3:
                by_seed[row["seed"]].append(float(row["value"]))
        if by_seed:
            scores[mode, right] = [fmean(policies) for policies in by_seed.values()]
    whole = [right for right in DIAL if all((mode, right) in scores for mode in DIAL_MODES)]
    return {key: of_seeds for key, of_seeds in scores.items() if key[1] in whole}


def skills(path: Path) -> None:
    """One hole of each policy over a run: with a peer, with its own memory, alone."""
    labels = {"solo": "alone", "replay": "memory", "sgt": "with peer"}
    runs = {mode: read_metrics(RESULTS / f"{mode}-s0") for mode in labels}
    figure, panels = figures.new_figure(figures.WIDTH, 6.4, rows=2)
    learners = (("qwen-tiny", "sold"), ("llama-tiny", "eats"))
    for axes, (learner, skill) in zip(panels, learners, strict=True):
        ends = []
        for mode, lines in runs.items():
            curve = figures.series(lines, learner, f"skill/{skill}", figures.COMPARED_WINDOW)
            color, width = figures.color_of(mode), 3 if mode == "sgt" else 2
            axes.plot(*curve, color=color, linewidth=width)
            ends.append((curve[1][-1], labels[mode], color))

        (peer,) = {name for name, _ in learners} - {learner}
        curve = figures.series(runs["sgt"], peer, f"skill/{skill}", figures.COMPARED_WINDOW)
        axes.plot(*curve, color=GRAY, linewidth=1, linestyle=":")
        ends.append((curve[1][-1], "the peer", GRAY))
        figures.name_ends(axes, ends)
        axes.set_title(f'{learner} on its hole "{skill}"')
        axes.set(ylim=(-0.02, 1), xlabel="step", ylabel="share of right attempts")

    figure.suptitle("Alone a hole stays, a memory may\nhave luck, and a peer fills it")
    figures.save_figure(figure, path)


def kinds(path: Path) -> None:
    """The kinds of groups of one policy over a run, alone and beside its peer."""
    figure, panels = figures.new_figure(figures.WIDTH, 6.6, rows=2)
    shares = {  # in the order of the stack
        "groups/all_fail": ("all fail: no gradient", RED),
        "groups/mixed": ("mixed: they teach", GREEN),
        "groups/all_pass": ("all pass: no gradient", "#cccccc"),
    }
    titles = {"solo": "alone (solo)", "sgt": "with its peer (sgt)"}
    for axes, (mode, title) in zip(panels, titles.items(), strict=True):
        lines = read_metrics(RESULTS / f"{mode}-s0")
        stacked = []
        for share in shares:
            steps, values = figures.series(lines, "qwen-tiny", share, figures.COMPARED_WINDOW)
            stacked.append(values)
        labels, colors = zip(*shares.values(), strict=True)
        areas = axes.stackplot(steps, stacked, colors=colors)
        axes.set(title=title, ylim=(0, 1), xlim=(steps[0], steps[-1]))
        axes.set(xlabel="step", ylabel="share of groups")

    figure.suptitle("Groups that fail altogether: alone they\nstay to the end, with a peer they go")
    figure.legend(areas, labels, ncols=2, loc="outside lower center", frameon=False)
    figures.save_figure(figure, path)


LIVE_STEP = 24  # of the kept run, for the picture of the live view


def live() -> str:
    """The live view of the kept run, as a narrow terminal shows it, as an SVG."""
    directory = RESULTS / "sgt-s0"
    config = read_run_config(directory)
    console = Console(width=56, file=io.StringIO(), force_terminal=True, record=True)
    names = [policy.name for policy in config.policies]
    view = View(console, names, config.steps, f"mini-mrl: {config.mode}, seed {config.seed}")
    view.scored(read_evaluations(directory)["before"])
    lines = [line for line in read_metrics(directory) if line["step"] <= LIVE_STEP]
    rescues = [rescue for rescue in read_rescues(directory) if rescue["step"] <= LIVE_STEP]
    view.go_on(lines, rescues)
    console.print(view.render())
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # not fetched
    return console.export_svg(title="A bar a skill", code_format=form, unique_id="live")


DRAWINGS = (step, advantages, clip, ladders, rescue, support, dial, live)


def main(folder: Path = HERE) -> None:
    """Write all of them into a folder."""
    for draw in DRAWINGS:
        (folder / f"{draw.__name__}.svg").write_text(str(draw()), encoding="utf-8")
    skills(folder / "skills.png")
    kinds(folder / "kinds.png")


if __name__ == "__main__":
    main()
