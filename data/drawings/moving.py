"""The moving picture of README.md: which rows of a run teach, and where a hint enters.

`python data/drawings/moving.py` draws it from the kept samples in `moving.json`. With `--sample` it
makes them first: it trains the tiny pair (mode hint, seed 0) and lets both models try the same
16 held-out problems from time to time. That takes four minutes on two idle CPU cores.
"""

import json
import sys
from collections import Counter
from html import escape
from pathlib import Path

import torch

from mini_mrl import load_team, train_step
from mrl.run.problems import load_problems
from mrl.samples import derive_seed

HERE = Path(__file__).resolve().parent
KEPT = HERE / "moving.json"
HELDOUT = HERE.parent / "words" / "validation.jsonl"
STEPS = (0, 20, 40, 60, 90, 120, 160, 200, 240)  # when the problems are tried
# The number of problems of each skill. llama-tiny begins with the blind spots `bags` and `eats`.
WATCHED = {"bags": 4, "eats": 4, "shares": 2, "finds": 2, "loses": 2, "days": 2}
ATTEMPTS = 8
LEARNER, PEER = "llama-tiny", "qwen-tiny"


def sample() -> dict:
    """Train the pair and return what both models solved of the watched problems at `STEPS`."""
    problems = load_problems(HELDOUT)
    watched = []
    for skill, count in WATCHED.items():
        watched += [problem for problem in problems if problem.skill == skill][:count]

    team = load_team("tiny", mode="hint", seed=0)
    frames, hints = [], Counter()  # hints: skill -> second attempts imitated since the last frame
    for step in range(max(STEPS) + 1):
        if step:
            result = train_step(team, step)[LEARNER]
            skills = {group.problem.id: group.problem.skill for group in result.groups}
            for sample in result.batch.samples:
                if sample.imitates == "hinted":
                    hints[skills[sample.record.prompt_id]] += 1
        if step not in STEPS:
            continue

        frame = {"step": step, "hints": dict(sorted(hints.items()))}
        for policy in team.policies:
            # the same numbers for all steps, so that only the weights change
            generator = torch.Generator().manual_seed(derive_seed(team.seed, 0, policy.index))
            groups = policy.rollout(watched, generator, ATTEMPTS)
            team.verifier.verify_groups(groups)
            frame[policy.name] = ["".join(f"{reward:.0f}" for reward in g.rewards) for g in groups]
        frames.append(frame)
        hints.clear()
        print(f"step {step}: {frame[LEARNER]}", flush=True)

    prompts = [{"skill": problem.skill, "prompt": problem.prompt} for problem in watched]
    return {"problems": prompts, "frames": frames}


# ------------------------------------------------------------------------------ the drawing

WIDTH, LEFT, PITCH, ROW = 390, 96, 19, 20  # pixels; of the grid, and of its columns and rows
TOP, GAP = 84, 8  # the first row, and the space between two skills
FRAME_S, LAST_S = 1.6, 4.0  # how long a frame is shown
# The colors of the page and the replay, for light and dark: a color has one meaning everywhere.
STYLE = """
text{font:13px Helvetica,Arial,sans-serif;fill:var(--ink)}
.title{font-size:15px}.title,.bold{font-weight:bold}.soft{fill:var(--soft)}.end{text-anchor:end}
.card{fill:var(--card);stroke:#8888}.learner{fill:var(--orange)}.peer{fill:var(--blue)}
.hit{fill:var(--correct);stroke:var(--correct)}.miss{fill:url(#hatch);stroke:var(--wrong)}
.cross{fill:none;stroke:var(--correct);stroke-width:2.5}#hatch path{stroke:var(--wrong)}
svg{--card:#fff;--ink:#1b1b1b;--soft:#5c5c5c;--correct:#00704f;--wrong:#a3384b;--blue:#0064a3;
--orange:#b04700}
@media (prefers-color-scheme:dark){svg{--card:#15191f;--ink:#eee;--soft:#b0b0b0;--correct:#35c79a;
--wrong:#f08a9b;--blue:#5db8f5;--orange:#ff9d5c}}
.still{display:none}
@media (prefers-reduced-motion:reduce){.still{display:inline}.moving{display:none}}
"""
HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<path d="M-1 1L1 -1M0 5L5 0M4 6L6 4" stroke-width="1.2"/></pattern></defs>'
)


def words(x: float, y: float, text: str, look: str = "") -> str:
    """A line of text. look: classes of `STYLE`."""
    return f'<text x="{x:g}" y="{y:g}" class="{look}">{escape(text)}</text>'


def tops(problems: list[dict]) -> list[int]:
    """The top of each row; a gap separates the skills."""
    places, y = [], TOP
    for above, problem in zip([None, *problems], problems, strict=False):
        y += GAP if above and above["skill"] != problem["skill"] else 0
        places.append(y)
        y += ROW
    return places


def blind_spots(y: list[int]) -> dict[str, int]:
    """The top of each blind spot of the learner: they have the most rows."""
    skills = [skill for skill, count in WATCHED.items() for _ in range(count)]
    return {skill: y[skills.index(skill)] for skill, count in WATCHED.items() if count > 2}


def cells(rows: list[str], y: list[int], left: float, pitch: int, which: str) -> str:
    """The attempts whose reward is one of the characters in `which`, as one path.

    rows: a string of 0 and 1 for each problem.
    """
    path, size = "", pitch - 3
    for top, row in zip(y, rows, strict=True):
        for number, reward in enumerate(row):
            if reward in which:
                path += f"M{left + pitch * number:g} {top}h{size}v{ROW - 4}h-{size}z"
    return f'<path d="{path}" class="{"hit" if which == "1" else "miss"}"/>'


def fate(own: str, peer: str) -> str:
    """What a group with these rewards does in a step of `hint`."""
    if "0" in own and "1" in own:
        return "teaches"
    if "1" in own:
        return "skipped: all correct"
    return "hint" if "1" in peer else "skipped: no solution"


def arrow(start: float, end: float, y: float) -> str:
    """An arrow to the left, for a beginning that crosses."""
    return f'<path d="M{start:g} {y}H{end:g}m6 -5l-6 5l6 5" class="cross"/>'


def moment(frame: dict, y: list[int], hints: dict[str, int]) -> str:
    """A frame: its step, the correct attempts, and what becomes of each row.

    hints: skill -> second attempts that were imitated in training up to this step.
    """
    parts = [words(12, 70, f"step {frame['step']}", "bold")]
    for skill, top in blind_spots(y).items():
        parts.append(words(12, top + 13 + 2 * ROW, f"{hints.get(skill, 0)} hints", "soft"))
    parts.append(cells(frame[LEARNER], y, LEFT, PITCH, "1"))
    right = LEFT + 8 * PITCH + 6
    for top, own, peer in zip(y, frame[LEARNER], frame[PEER], strict=True):
        of_row = fate(own, peer)
        if of_row == "hint":
            parts.append(arrow(right + 34, right, top + 8))
            parts.append(words(right + 40, top + 13, f"from {PEER}", "peer"))
        else:
            look = "bold" if of_row == "teaches" else "soft"
            parts.append(words(right, top + 13, of_row, look))
    return "".join(parts)


def still(frames: list[dict], y: list[int]) -> str:
    """The first frame beside the last one, for people who want nothing to move."""
    parts = []
    for left, frame in ((LEFT, frames[0]), (LEFT + 150, frames[-1])):
        parts.append(words(left, 70, f"step {frame['step']}", "bold"))
        parts += [cells(frame[LEARNER], y, left, 14, which) for which in ("01", "1")]
        for top, own, peer in zip(y, frame[LEARNER], frame[PEER], strict=True):
            if fate(own, peer) == "hint":
                parts.append(arrow(left + 138, left + 114, top + 8))
    return "".join(parts)


def keyframes(number: int, count: int) -> str:
    """The animation of a frame: it fades in, stays, and fades out when the next one comes."""
    whole = FRAME_S * (count - 1) + LAST_S
    start, end = (100 * FRAME_S * place / whole for place in (number, number + 1))
    fade = 100 * 0.25 / whole
    shown = f"{start + fade:.2f}%,{end:.2f}%{{opacity:1}}"
    times = f"0%,{start:.2f}%{{opacity:0}}{shown}{end + fade:.2f}%,100%{{opacity:0}}"
    if number == 0:
        times = f"0%,{end:.2f}%{{opacity:1}}{end + fade:.2f}%,100%{{opacity:0}}"
    elif number == count - 1:
        times = f"0%,{start:.2f}%{{opacity:0}}{start + fade:.2f}%,99%{{opacity:1}}100%{{opacity:0}}"
    return (
        f"@keyframes k{number}{{{times}}}"
        f".f{number}{{opacity:0;animation:k{number} {whole:g}s linear infinite}}\n"
    )


def draw(kept: dict) -> str:
    """The picture as an SVG. kept: what `sample` returned."""
    problems, frames = kept["problems"], kept["frames"]
    y = tops(problems)
    height = y[-1] + ROW + 34
    title = "Where all attempts fail, a peer begins, and rows begin to teach"
    style = STYLE + "".join(keyframes(number, len(frames)) for number in range(len(frames)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}"><title>{escape(title)}</title><style>{style}</style>{HATCH}',
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="6" class="card"/>',
        words(12, 24, "Where all attempts fail, a peer begins", "title"),
        words(12, 46, LEARNER, "bold learner"),
        words(84, 46, f"tries each of {len(problems)} new problems {ATTEMPTS} times"),
    ]
    skills = [problem["skill"] for problem in problems]
    for skill in dict.fromkeys(skills):
        top = y[skills.index(skill)]
        parts.append(words(12, top + 13, skill, "bold"))
    for top in blind_spots(y).values():
        parts.append(words(12, top + 13 + ROW, "blind spot", "soft"))

    moving, hints = "", Counter()
    for number, frame in enumerate(frames):
        hints.update(frame["hints"])
        moving += f'<g class="f{number}">{moment(frame, y, hints)}</g>\n'
    everything = cells(frames[0][LEARNER], y, LEFT, PITCH, "01")
    parts.append(f'<g class="moving">{everything}\n{moving}</g>')
    parts.append(f'<g class="still">{still(frames, y)}</g>')
    low = height - 30
    for x, look in ((12, "hit"), (84, "miss")):
        parts.append(f'<path d="M{x} {low}h16v16h-16z" class="{look}"/>')
    parts += [words(33, low + 13, "correct"), words(105, low + 13, "wrong")]
    parts += [arrow(190, 160, low + 8), words(197, low + 13, "the peer begins a solution")]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Draw the picture; with `--sample`, sample first."""
    if "--sample" in sys.argv:
        KEPT.write_text(json.dumps(sample(), indent=1) + "\n", encoding="utf-8")
    picture = draw(json.loads(KEPT.read_text(encoding="utf-8")))
    KEPT.with_suffix(".svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
