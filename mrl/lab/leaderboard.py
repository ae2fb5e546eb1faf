"""One row per mode for the table of modes in data/results/README.md, as `compare` prints it."""

from collections.abc import Sequence
from statistics import fmean

from mrl.lab.compare import Result, by_mode
from mrl.lab.compare_view import blind_spots_of, is_closed
from mrl.modes import Mode
from mrl.run.intervals import estimate

TEST = "test"  # the held-out file whose scores are shown; a comparison without it shows its first


def leaderboard_rows(
    results: Sequence[Result], modes: dict[str, type[Mode]]
) -> list[dict[str, str]]:
    """One row per compared mode, best first. modes: the class of each compared mode."""
    blind_spots = blind_spots_of(results)
    splits = {key[0] for key in results[0].scores}
    split = TEST if TEST in splits else results[0].first_split

    rows, means = [], {}
    for name, runs in by_mode(results).items():
        score = estimate([run.overall(split) for run in runs])
        means[name] = score.mean
        closed = sum(is_closed(run, spot) for run in runs for spot in blind_spots)
        record = modes[name].consumes
        rows.append(
            {
                "mode": name,
                "shares": record.kind if record else "nothing",
                "seeds": str(len(runs)),
                "blind spots closed": f"{closed} of {len(runs) * len(blind_spots)}",
                f"pass@1, {split}": str(score),
                "minutes": f"{fmean(run.costs['seconds'] for run in runs) / 60:.1f}",
            }
        )
    return sorted(rows, key=lambda row: -means[row["mode"]])
