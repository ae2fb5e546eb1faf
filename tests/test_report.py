import csv
import json
import re
import shutil

import pytest

import mini_mrl
from mrl.errors import MrlError
from mrl.lab.report import headline, write_report
from mrl.run import figures
from mrl.run.directory import read_metrics, read_samples
from mrl.run.problems import save_problems
from mrl.tiny.pair import BLIND_SPOTS, PAIR
from mrl.tiny.skills import SKILLS, generate
from tests import browser

HOSTILE = '<script>alert(1)</script>\x1b[31m "quoted" & \\boxed{2}'


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    """A run that has sampled, exchanged and ended; a step has a third of its problems."""
    folder = tmp_path_factory.mktemp("report")
    settings = {"runs": folder, "prompts_per_step": 6, "group_size": 4}
    for part in ("train", "validation"):
        made = [problem for skill in SKILLS for problem, _ in generate(skill, part, 2, 0)]
        save_problems(folder / f"{part}.jsonl", made)
        path = str(folder / f"{part}.jsonl")
        settings["train" if part == "train" else "heldout"] = (
            path if part == "train" else f'["{path}"]'
        )
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    place = ["--placement", "resident", "--pair", "tiny"]
    assert mini_mrl.main(["--steps", "4", "--name", "r", "--plain", *place, *sets]) == 0
    return folder / "r"


@pytest.fixture
def drawn(one_run, tmp_path):
    """A copy of that run."""
    return shutil.copytree(one_run, tmp_path / "r")


@pytest.fixture
def finished(drawn, monkeypatch):
    """A copy of that run, for tests that look at no plot: drawing them takes seconds."""

    def no_plot(lines, path, keys, unit):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")

    monkeypatch.setattr(figures, "draw_curves", no_plot)
    return drawn


def test_the_page_tells_the_run_and_needs_nothing_from_elsewhere(finished, capsys):
    assert mini_mrl.main(["report", str(finished)]) == 0
    assert "report.html" in capsys.readouterr().out
    page = (finished / "report.html").read_text()
    shown, _, folded = page.partition("<details>")
    assert headline(finished) in shown
    assert 'id="replay"' in shown
    reward, *others = (title for _, title, _, _ in figures.PICTURES)
    assert reward in shown  # the first curve that anybody looks for
    for part in ("Held-out problems", *others):
        assert part in folded, part
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert not re.search(r">[^<]*(outcome|groups|exchange|completions)/", folded)  # words, no names
    images = re.findall(r"<img ([^>]*)>", page)
    assert images and all(re.search(r'alt="[^"]{20,}"', image) for image in images)
    assert '<html lang="en">' in page


def test_what_a_model_wrote_cannot_do_anything_in_the_page(finished):
    rescue = {
        "problem_id": "p", "prompt": HOSTILE, "skill": HOSTILE, "receiver": "qwen-tiny",
        "receiver_text": HOSTILE, "source": "llama-tiny", "source_text": HOSTILE,
    }  # fmt: skip
    (finished / "samples.jsonl").write_text(json.dumps({"step": 1, "rescue": rescue}) + "\n")
    metrics = (finished / "metrics.jsonl").read_text()
    (finished / "metrics.jsonl").write_text(metrics.replace("skill/sold", "skill/<b>sold"))
    page = write_report(finished).read_text()
    assert len(re.findall("<script", page)) == 2  # the replay's data and the replay
    assert "\x1b" not in page
    assert "\\u003cscript>alert(1)" in page and "\\u003cb>sold" in page
    assert "<b>sold" not in page


@pytest.mark.slow
def test_a_name_that_looks_like_mathematics_is_drawn_as_it_is(drawn):
    for file in ("metrics.jsonl", "samples.jsonl", "config.json"):
        text = (drawn / file).read_text()
        for name, odd in (("qwen-tiny", "m$x^$"), ("llama-tiny", "$\\\\frac$")):
            text = text.replace(f'"{name}"', f'"{odd}"').replace(f"/{name}/", f"/{odd}/")
        (drawn / file).write_text(text)
    assert "m$x^$" in write_report(drawn).read_text()
    plots = list((drawn / "figures").glob("*.png"))
    assert len(plots) == len(figures.PICTURES)
    assert all(path.stat().st_size > 5000 for path in plots)


def test_an_unfinished_run_with_a_torn_line_has_a_report_too(finished):
    evaluations = json.loads((finished / "evaluation.json").read_text())
    del evaluations["after"]
    (finished / "evaluation.json").write_text(json.dumps(evaluations))
    with (finished / "metrics.jsonl").open("a") as log:
        log.write('{"step": 5, "pol')
    assert "4 of 4 steps" in write_report(finished).read_text()


def data_of(page):
    """What the page's replay is made of."""
    return json.loads(re.search(r'id="run">(.*?)</script>', page)[1])


def test_a_rescued_problem_is_shown_as_it_was_met_again(finished):
    samples = read_samples(finished)
    rescues = [line["rescue"] | {"step": line["step"]} for line in samples if "rescue" in line]
    last = {
        (line["policy"], line["problem"]): line["step"] for line in samples if "problem" in line
    }
    met_again = [last[one["receiver"], one["problem_id"]] > one["step"] for one in rescues]
    shown = data_of(write_report(finished).read_text())["rescues"]
    assert ["again" in one for one in shown] == met_again and not all(met_again)
    rescue = rescues[0]
    again = {"step": 99, "policy": rescue["receiver"], "problem": rescue["problem_id"]}
    with (finished / "samples.jsonl").open("a") as log:
        log.write(json.dumps(again | {"text": "now I know", "verdict": "correct"}) + "\n")
        log.write(json.dumps({"step": 99, "failure": "the verifier was slow"}) + "\n")
    page = write_report(finished).read_text()
    shown = data_of(page)["rescues"][0]
    assert shown["again"] == [99, "correct", "now I know"]
    assert shown["prompt"] == rescue["prompt"]
    assert [tokens.replace(" ", "").replace("·", " ") for tokens in shown["tokens"]] == [
        rescue["source_text"]
    ] * 2
    assert shown["tokens"][0] != shown["tokens"][1]
    assert "<td>99</td><td>the verifier was slow</td>" in page


def test_the_replay_has_every_step_and_marks_the_blind_spots(finished):
    run = data_of(write_report(finished).read_text())
    assert run["steps"] == 4
    before = json.loads((finished / "evaluation.json").read_text())["before"]
    for policy, scores, name in zip(run["policies"], before, PAIR, strict=False):
        rates = {skill: numbers["pass@1"] for skill, numbers in scores["skills"].items()}
        assert policy["closed"] == []  # after four steps
        assert policy["blind_spots"] == [skill for skill, rate in rates.items() if rate < 0.02]
        assert set(policy["blind_spots"]) >= set(BLIND_SPOTS[name])
    lines = [line for line in read_metrics(finished) if line["policy"] == "qwen-tiny"]
    met = [(line["step"], line["skill/sold"]) for line in lines if "skill/sold" in line]
    rates = run["policies"][0]["rates"]
    assert [step for step, _ in rates["sold"]] == [step for step, _ in met]
    assert rates["sold"][0][1] == round(100 * met[0][1])


def test_the_replay_calls_a_blind_spot_closed_only_if_the_headline_does(finished):
    evaluations = json.loads((finished / "evaluation.json").read_text())
    evaluations["after"][0]["skills"]["days"]["pass@1"] = 0.5
    (finished / "evaluation.json").write_text(json.dumps(evaluations))
    page = write_report(finished).read_text()
    assert [policy["closed"] for policy in data_of(page)["policies"]] == [["days"], []]
    del evaluations["after"]
    (finished / "evaluation.json").write_text(json.dumps(evaluations))
    page = write_report(finished).read_text()
    assert [policy["closed"] for policy in data_of(page)["policies"]] == [None, None]


def test_a_run_whose_models_are_gone_has_a_report(finished):
    config = (finished / "config.json").read_text()
    (finished / "config.json").write_text(config.replace("tiny/", "gone/"))
    rescues = data_of(write_report(finished).read_text())["rescues"]
    assert rescues
    assert not any("tokens" in rescue for rescue in rescues)


def test_no_run_gets_one_sentence(tmp_path, finished):
    (tmp_path / "empty").mkdir()
    with pytest.raises(MrlError, match="not a run directory"):
        write_report(tmp_path / "empty")
    with pytest.raises(MrlError, match=f"the newest are: .*{finished.name}"):
        write_report(finished.parent)
    (finished / "metrics.jsonl").write_text("")
    with pytest.raises(MrlError, match="no finished step"):
        write_report(finished)


def test_a_run_ends_with_its_curves_and_its_metrics_as_a_table(one_run, capsys):
    assert (one_run / "figures" / "skills.png").stat().st_size > 5000
    with (one_run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = read_metrics(one_run)
    assert len(rows) == len(lines) == 8
    for row, line in zip(rows, lines, strict=True):
        assert {key: value for key, value in row.items() if value} == {
            key: str(value) for key, value in line.items()
        }


def test_a_run_of_many_skills_has_a_picture(tmp_path):
    log = {"step": 1, "policy": "a", "reward": 0.5} | {f"skill/{n}": 0.5 for n in range(700)}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(log))
    figures.save_curves(tmp_path)
    assert (tmp_path / "figures" / "skills.png").stat().st_size > 5000
    assert len((tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")) == 703


def test_panels_have_the_order_of_their_names_not_of_their_first_problems():
    met = ("skill/sold", "skill/eats", "skill/bags")
    lines = [{"step": step, "policy": "a", key: 0.5} for step, key in enumerate(met, 1)]
    assert figures.keys_of(lines, "skill/*") == sorted(met)
    assert figures.keys_of(lines, "groups/*") == []


def test_a_label_is_the_name_without_its_first_part_whatever_a_skill_is_called():
    names = ["skill/add/sub", "skill/a/b/c", "entropy", "exchange/success/qwen/bytes"]
    labels = [figures.label_of(name) for name in [*names, "completions/mean_length"]]
    assert labels == ["add/sub", "a/b/c", "entropy", "success/qwen/bytes", "mean length"]


def test_a_series_is_averaged_over_the_steps_before(finished):
    lines = [{"step": s, "policy": "a", "x": v} for s, v in ((1, 1.0), (2, 3.0), (4, 5.0))]
    assert figures.series(lines, "a", "x") == ([1, 2, 4], [1.0, 3.0, 5.0])
    assert figures.series(lines, "a", "x", window=2) == ([1, 2, 4], [1.0, 2.0, 4.0])
    assert figures.series(lines, "b", "x") == ([], [])
    assert len(read_metrics(finished)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 1000])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_it(finished, tmp_path, width, dark):
    page = write_report(finished).read_text(encoding="utf-8")
    script = """
    document.querySelector("details").open = true;
    document.querySelector(".tile.blind").click();
    return document.querySelector(".reading").textContent;
    """
    said = browser.ask(page, tmp_path, width, dark, script)
    browser.check_look(said, width, dark)
    assert "was rescued" in said["answer"]


@pytest.mark.slow
def test_what_a_model_wrote_does_nothing_in_a_browser_either(finished, tmp_path):
    problem = {"problem_id": "p", "prompt": HOSTILE, "skill": "sold", "receiver": "qwen-tiny"}
    rescue = problem | {"receiver_text": HOSTILE, "source": "llama-tiny", "source_text": HOSTILE}
    (finished / "samples.jsonl").write_text(json.dumps({"step": 1, "rescue": rescue}) + "\n")
    page = write_report(finished).read_text(encoding="utf-8")
    script = """
    const tiles = [...document.querySelectorAll(".tile")];
    tiles.find((tile) => tile.textContent.includes("sold")).click();
    return document.querySelector(".reading").textContent;
    """
    said = browser.ask(page.replace("alert(1)", "wrong.push(1)"), tmp_path, 390, script=script)
    assert said["wrong"] == []
    assert HOSTILE.replace("alert(1)", "wrong.push(1)").replace("\x1b", "\\u{1b}") in said["answer"]
