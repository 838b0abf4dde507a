"""How often intervals and p values of paired comparisons are right, on pairs with a known truth.

    python tests/perf/simulate_intervals.py [--runs 4000]

Writes `tests/perf/results/intervals.md`: coverage over clips x base x difference x clustering, and
the share of true null hypotheses that are rejected. Everything is seeded.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from paired_runs import draw_pairs

from tango_core.metrics import compare_paired

CLIPS, BASES, DIFFERENCES = (5, 10, 20, 40, 200), (0.5, 0.7, 0.9, 0.99), (0.0, 0.01, 0.05, 0.2)
SIZE = 3
BY_CLIP = {"none": 0.0, "strong": 0.5}
TARGET = Path(__file__).parent / "results" / "intervals.md"


def comparisons(rng, num_runs, num_clips, size, base, difference, by_clip):
    """Compare drawn pairs; also the true difference."""
    ours, theirs, truth = draw_pairs(
        rng, num_runs, num_clips, size, base, difference, by_clip=by_clip
    )
    clips = np.repeat(np.arange(num_clips), size)
    pairs = zip(ours, theirs, strict=True)
    return [compare_paired(a.ravel(), b.ravel(), clips) for a, b in pairs], truth


def coverage_rows(num_runs):
    """One row per setting: coverage where an interval is trusted, and over all runs."""
    rng = np.random.default_rng(0)
    for clips, base, diff, (name, share) in itertools.product(
        CLIPS, BASES, DIFFERENCES, BY_CLIP.items()
    ):
        results, truth = comparisons(rng, num_runs, clips, SIZE, base, diff, share)
        covered = np.array([r.low <= truth <= r.high for r in results])
        few = np.array([r.too_few_clips for r in results])
        changed = np.mean([r.num_changed_clips for r in results])
        trusted = f"{100 * covered[~few].mean():.1f}" if (~few).mean() >= 0.05 else "-"
        yield (
            f"| {clips} | {base} | {diff} | {name} | {changed:.1f} | {100 * few.mean():.0f} | "
            f"{trusted} | {100 * covered.mean():.1f} |"
        )


def level_rows(num_runs):
    """One row per setting: how often equal runs are called different at the 5 % level."""
    rng = np.random.default_rng(1)
    for clips, base, (name, share), size in itertools.product(
        (20, 40, 100), (0.5, 0.7, 0.9), BY_CLIP.items(), (1, 3, 5)
    ):
        results, _ = comparisons(rng, num_runs, clips, size, base, 0.0, share)
        changed = np.mean([r.num_changed_clips for r in results])
        rejected = 100 * np.mean([r.p_value < 0.05 for r in results])
        yield f"| {clips} | {size} | {base} | {name} | {changed:.1f} | {rejected:.1f} |"


def main() -> None:
    """Simulate and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4000)
    num_runs = parser.parse_args().runs
    lines = [
        "# Paired comparisons on pairs with a known truth",
        "",
        f"`python tests/perf/simulate_intervals.py --runs {num_runs}`; {num_runs} pairs a row.",
        "",
        f"## Coverage of the 95 % interval, {SIZE} questions a clip",
        "",
        "`too few`: share of pairs whose comparison says `too few clips`; `interval`: coverage of",
        "the others; `all`: coverage with the wider interval of the former.",
        "",
        "| clips | base | difference | clustering | changed | too few % | interval % | all % |",
        "|---|---|---|---|---|---|---|---|",
        *coverage_rows(num_runs),
        "",
        "## Equal runs that are called different, p < 0.05",
        "",
        "One question a clip: exact McNemar test; more: sign flips of whole clips.",
        "",
        "| clips | questions a clip | base | clustering | changed clips | rejected % |",
        "|---|---|---|---|---|---|",
        *level_rows(num_runs),
    ]
    TARGET.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
