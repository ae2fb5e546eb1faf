"""The page that plays: its scripts compute what the program does, and a browser can play it."""

import importlib.util
import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest
import torch

from mrl.advantages import group_advantages
from mrl.config import DATA
from mrl.lab.bandit import PUBLISHED, analyze, bandit_modes, complementary
from mrl.lab.report import headline
from mrl.run.directory import read_metrics, read_rescues
from mrl.run.problems import load_problems
from tests import browser

FOLDER = DATA / "page"
KEPT = (FOLDER / "index.html").read_text(encoding="utf-8")
BLIND_SPOTS = [[1e-5, 0.9], [0.9, 1e-5]]  # the page's preset: [learner][prompt], share correct
SHARING = ("alone", "replay", "peer")


def part(name, page=KEPT):
    """What stands in one of the page's scripts."""
    return re.search(rf'id="{name}">(.*?)</script>', page, re.DOTALL)[1]


def in_node(script):
    """What a script prints, as JSON."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed, so the page's scripts cannot be run")
    done = subprocess.run([node, "-"], input=script.encode(), capture_output=True, check=True)
    return json.loads(done.stdout)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(scope="module")
def two_learners():
    spec = importlib.util.spec_from_file_location("two_learners", FOLDER / "two_learners.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make(two_learners):
    sys.modules["two_learners"] = two_learners  # as it is found beside the script
    spec = importlib.util.spec_from_file_location("make", FOLDER / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["two_learners"]


# ---------------------------------------------------------------------------- the playable run


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("luck", [[[0.01, 0.9], [0.9, 0.01]], [[1e-4, 0.9], [1e-3, 0.9]]])
@pytest.mark.parametrize(("size", "weight", "liar"), [(8, 0.1, False), (3, 0.5, True)])
def test_the_playable_run_computes_what_the_tutorials_example_does(
    sharing, luck, size, weight, liar, two_learners
):
    chance = random.Random(3)
    steps = []
    for _ in range(200):
        steps.append([[[chance.random() for _ in range(size)] for _ in "ab"] for _ in "ab"])
    world = two_learners.World(sharing, luck, weight, liar)
    after = []  # logits after each step
    for uniforms in steps:
        imitated = world.step(uniforms)
        after.append(torch.stack(list(world.logits.values())).view(2, 2, 4).tolist())

    asked = f"""
    const world = newWorld({json.dumps([sharing, luck, weight, liar])[1:-1]});
    const after = {json.dumps(steps)}.map((uniforms) => {{
      stepWorld(world, uniforms);
      return structuredClone(world.logits);
    }});
    console.log(JSON.stringify({{ after, imitated: world.imitated }}));
    """
    answer = in_node(part("play") + asked)
    assert torch.allclose(double(answer["after"]), double(after), rtol=0, atol=1e-6)
    assert answer["imitated"] == [[imitated.get((a, b)) for b in (0, 1)] for a in (0, 1)]
    moved = (double(after[-1]) - double(after[0])).abs().max()
    assert moved > 0.5 or sharing != "peer"


def test_only_a_peer_closes_a_blind_spot(two_learners):
    ends = {}
    for sharing in SHARING:
        chance, world = random.Random(0), two_learners.World(sharing, BLIND_SPOTS)
        for _ in range(two_learners.STEPS):
            world.step([[[chance.random() for _ in range(8)] for _ in "ab"] for _ in "ab"])
        ends[sharing] = [world.logits[place].softmax(0)[0] for place in ((0, 0), (1, 1))]
    assert max(ends["alone"] + ends["replay"]) < 1e-4
    assert min(ends["peer"]) > 0.9


def test_a_lie_that_nobody_checks_does_harm(two_learners):
    ends = {}
    for liar in (False, True):
        chance = random.Random(0)
        world = two_learners.World("peer", [[1e-5, 0.9], [1e-5, 0.9]], liar=liar)
        for _ in range(two_learners.STEPS):
            world.step([[[chance.random() for _ in range(8)] for _ in "ab"] for _ in "ab"])
        ends[liar] = world.logits[0, 0].softmax(0)[0]
    assert ends[True] < ends[False]  # neither has a solution, and the lies are imitated


# ------------------------------------------------------------------------------ the other parts


def test_the_replay_is_the_kept_runs(make):
    run = json.loads(part("run"))
    lines, rescues = read_metrics(make.KEPT_RUN), read_rescues(make.KEPT_RUN)
    assert run["steps"] == lines[-1]["step"]
    assert [policy["name"] for policy in run["policies"]] == ["qwen-tiny", "llama-tiny"]
    texts = [rescue["source_text"] for rescue in rescues]
    assert [rescue["source_text"] for rescue in run["rescues"]] == texts
    for rescue in run["rescues"]:
        for tokens in rescue["tokens"]:
            assert tokens.replace(" ", "").replace("·", " ") == rescue["source_text"]
    assert run["policies"][0]["blind_spots"] == ["sold", "days"]
    last = [line for line in lines if line["policy"] == "qwen-tiny" and "skill/sold" in line]
    mean = sum(line["skill/sold"] for line in last[-10:]) / 10
    assert run["policies"][0]["rates"]["sold"][-1] == [last[-1]["step"], round(100 * mean)]
    inlined = sum(len(text) for text in re.findall(r'"application/json"[^>]*>(.*?)</', KEPT, re.S))
    assert inlined < 500_000


def test_the_report_is_the_kept_runs_and_small(make):
    report = (FOLDER / "report.html").read_text(encoding="utf-8")
    assert f"<strong>{headline(make.KEPT_RUN)}</strong>" in report
    assert headline(make.KEPT_RUN) in KEPT
    assert part("run", report) == part("run")
    assert make.EMBEDDED.findall(report)
    assert len(report) < 800_000


def test_the_hint_is_a_beginning_of_the_peers_solution_and_of_the_learners():
    example = json.loads((FOLDER / "hint.json").read_text(encoding="utf-8"))
    problems = load_problems(DATA / "words" / "train.jsonl")
    [problem] = [problem for problem in problems if problem.prompt == example["prompt"]]
    for text, correct in (("alone", False), ("peer", True), ("text", True)):
        assert (f"boxed{{{problem.answer}}}" in example[text]) == correct
        assert correct == example[text].startswith(example["beginning"])
        assert example[text] in re.sub("</?b>", "", KEPT)


def test_its_modes_are_the_bandits():
    contexts = complementary()
    modes = bandit_modes(contexts)
    rows = {name: figures for name, *figures in json.loads(part("facts"))["modes"]}
    assert set(rows) == {*PUBLISHED} - {"replay"}
    for name in ("sgt", "sft"):
        exact = analyze(modes[name], contexts[1])
        shown = [float(text.rstrip("%°")) for text in rows[name]]
        assert shown == pytest.approx([100 * exact.support, exact.angle, exact.groups], rel=0.07)
    for name in (*rows, "replay"):
        assert f'<tr data-mode="{name}">' in KEPT
    for name in PUBLISHED:
        assert re.search(rf'data-modes="[^"]*\b{name}\b', KEPT)  # in the picture


def test_its_formulas_are_the_programs():
    examples = [[1.0] * right + [0.0] * (8 - right) for right in range(9)]
    asked = f"""
    const rows = {json.dumps(examples)}.map((r) => [true, false].map((by) => advantages(r, by)));
    const fails = [allFailChance(0.25, 2), allFailChance(0, 8), allFailChance(0.02, 8)];
    console.log(JSON.stringify({{ rows, fails, losses: rows.flat().map(loss) }}));
    """
    answer = in_node(part("formulas") + asked)
    for rewards, rows in zip(examples, answer["rows"], strict=True):
        for row, by_std in zip(rows, (True, False), strict=True):
            wanted = group_advantages(torch.tensor([rewards]), by_std)[0].tolist()
            assert row == pytest.approx(wanted, abs=1e-5)
    assert answer["fails"] == pytest.approx([0.5625, 1.0, 0.98**8])
    assert answer["losses"] == pytest.approx([0.0] * 18, abs=1e-9)


def test_it_fetches_nothing_and_every_control_has_a_name():
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|src=|@import|url\((?!#)", KEPT)
    for tag in re.findall(r"<button[^>]*>", KEPT):
        assert 'type="button"' in tag
    for tag in re.findall(r"<input[^>]*>", KEPT):
        name = re.search(r'id="([^"]+)"', tag)
        named = name and f'<label for="{name[1]}">' in KEPT
        assert named or re.search(rf"<label[^>]*>{re.escape(tag)}", KEPT), tag


def test_its_links_lead_to_pages_that_a_browser_can_show():
    links = re.findall(r'<a href="([^"#]+)"', KEPT)
    assert links and all((FOLDER / link).is_file() for link in links)
    assert all(link.endswith(".html") for link in links)  # a browser shows markdown as raw text


# --------------------------------------------------------------------------------- in a browser

# as a person would: play to the end in each way to learn, then the replay, then the rest
PLAY = """
const ended = async (ask) => { while (!ask()) await new Promise((go) => setTimeout(go, 100)); };
const random = generator(2), uniforms = Array.from({ length: STEPS }, () => uniformsOf(random, 8));
const ways = {};
for (const radio of document.getElementsByName("sharing")) {
  radio.click();
  seed = 1;
  at("reset").click(); // new luck: seed 2
  let arrows = 0;
  const count = () => { arrows += document.querySelectorAll("#world .arrow.on").length; };
  const watch = new MutationObserver(count);
  watch.observe(at("world"), { childList: true, subtree: true });
  at("go").click();
  await ended(() => !timer && isOver(runs[radio.value]));
  watch.disconnect();
  const { world } = runs[radio.value];
  ways[radio.value] = { logits: world.logits, arrows,
    outcomes: [0, 1].map((learner) => outcome(world, learner)),
    story: at("story").textContent, step: at("step").textContent,
    buffer: document.querySelector(".learner .replay-buffer").checkVisibility() };
}
const [start, slider] = [at("replay-go"), at("replay-step")];
start.click();
slider.value = slider.max - 20;
await ended(() => start.textContent === "Play" && slider.value === slider.max);
const readings = [...document.querySelectorAll(".tile")].map((tile) => {
  tile.click();
  return document.querySelector(".reading").textContent;
});
at("answers").querySelector("button").click();
const group = at("group").textContent;
at("p").value = 0;
at("p").oninput();
const verdicts = {};
for (const { name, button } of modes) {
  button.click();
  verdicts[name] = at("mode").textContent;
}
return { uniforms, ways, group, verdicts, readings };
"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(320, False), (1000, True)])
def test_a_browser_plays_it(width, dark, tmp_path, two_learners):
    said = browser.ask(KEPT, tmp_path, width, dark, PLAY)
    browser.check_look(said, width, dark)
    answer = said["answer"]
    for sharing, way in answer["ways"].items():
        world = two_learners.World(sharing, BLIND_SPOTS)
        assert sharing == "peer" or way["step"] == str(two_learners.STEPS)
        for uniforms in answer["uniforms"][: int(way["step"])]:
            world.step(uniforms)
        ends = torch.stack(list(world.logits.values())).view(2, 2, 4)
        assert torch.allclose(double(way["logits"]), ends, rtol=0, atol=1e-6)
        assert (way["arrows"] > 0) == (sharing == "peer")
        assert way["buffer"] == (sharing == "replay")
        wanted = "rescued" if sharing == "peer" else "stuck"
        assert [outcome["kind"] for outcome in way["outcomes"]] == [wanted] * 2
        for outcome in way["outcomes"]:  # the story has the number that matters
            number = outcome["imitations"] if sharing == "peer" else outcome["written"]
            assert f"{number:,}" in way["story"]
    run = json.loads(part("run"))
    places = Counter((rescue["receiver"], rescue["skill"]) for rescue in run["rescues"])
    shown = [
        places[policy["name"], skill]
        for skill in run["policies"][0]["rates"]
        for policy in run["policies"]
    ]
    for reading, count in zip(answer["readings"], shown, strict=True):
        assert count < 2 or re.search(rf"\b{count}\b", reading)
    assert re.search(r"\b3\b", answer["group"])
    assert "73" in answer["verdicts"]["xgrpo"]
    assert "109" in answer["verdicts"]["graft"]
    assert len(set(answer["verdicts"].values())) == len(answer["verdicts"]) == len(PUBLISHED)


@pytest.mark.slow
def test_one_press_lets_two_stuck_learners_talk(tmp_path):
    script = """
    at("go").click();
    while (timer) await new Promise((go) => setTimeout(go, 100));
    const alone = [0, 1].map((learner) => outcome(runs.alone.world, learner));
    at("talk").click();
    while (timer) await new Promise((go) => setTimeout(go, 100));
    const peer = [0, 1].map((learner) => outcome(runs.peer.world, learner));
    const points = (way) => at("curve-" + way).getAttribute("points").split(" ");
    const curves = [points("alone").length, points("peer").length];
    return { alone, peer, curves, steps: [STEPS, runs.peer.world.step] };
    """
    answer = browser.ask(KEPT, tmp_path, 390, script=script)["answer"]
    assert max(outcome["chance"] for outcome in answer["alone"]) < 1e-4
    assert min(outcome["chance"] for outcome in answer["peer"]) > 0.9
    assert answer["curves"] == [step + 1 for step in answer["steps"]]  # both stay


@pytest.mark.slow
def test_a_link_restores_a_state(tmp_path):
    script = """
    document.querySelector("input[value=peer]").click();
    at("presets").querySelector("[value=weak_skill]").click();
    at("size").value = 4; at("weight").value = -0.5; at("liar").checked = true;
    at("reset").click(); step();
    const link = at("link").getAttribute("href"), logits = JSON.stringify(runs.peer.world.logits);
    at("presets").querySelector("[value=same]").click();
    document.querySelector("input[value=alone]").click();
    at("size").value = 8; at("liar").checked = false;
    location.hash = link; restore(); step();
    return [logits, JSON.stringify(runs.peer.world.logits), sharing(), at("size").value];
    """
    before, after, way, size = browser.ask(KEPT, tmp_path, 390, script=script)["answer"]
    assert before == after
    assert (way, size) == ("peer", "4")


@pytest.mark.slow
def test_the_presets_tell_their_stories(tmp_path):
    script = """
    const kinds = {};
    for (const button of at("presets").children) {
      button.click();
      for (const radio of document.getElementsByName("sharing")) {
        radio.click();
        for (let n = 0; n < STEPS; n++) step();
        const { world } = runs[radio.value];
        kinds[`${button.value} ${radio.value}`] = [0, 1].map((who) => outcome(world, who).kind);
      }
    }
    return kinds;
    """
    kinds = browser.ask(KEPT, tmp_path, 390, script=script)["answer"]
    assert kinds["weak_skill alone"] == ["lucky"] * 2
    assert kinds["weak_skill replay"] == ["replayed"] * 2
    assert kinds["weak_skill peer"] == ["rescued"] * 2
    assert kinds["blind_spot alone"] == kinds["blind_spot replay"] == ["stuck"] * 2
    assert kinds["blind_spot peer"] == ["rescued"] * 2
    assert all(kinds[f"same {sharing}"] == ["stuck"] * 2 for sharing in SHARING)
