"""How often intervals and p values are right, on runs with a known truth. Everything is seeded.

    python tests/perf/simulate_intervals.py [--runs 1000]

Prints the tables of `tests/perf/results/intervals.md`: coverage of accuracies, mean scores and
paired differences over the numbers of questions per clip x clips x base x clustering, each beside
the plain cluster-robust interval with clips - 1 degrees of freedom (what 0.1 had), and the share of
true null hypotheses that are rejected.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from paired_runs import draw_changes

from tango_core.metrics import compare_clips
from tango_core.metrics.intervals import (
    accuracy_of_clips,
    mean_of_clips,
    t_quantile,
    wilson_interval,
    z_quantile,
)

CLIPS, BASES = (12, 40, 200), (0.5, 0.7, 0.9, 0.98)
# Questions per clip -> number of such clips. MLVU's multiple-choice questions, counted in the
# release's seven files; LongVideoBench's validation set has 1,337 questions about 752 videos, but
# how they are spread is assumed.
MLVU = {1: 776, 2: 55, 3: 91, 4: 90, 5: 71, 6: 24, 7: 4, 8: 2, 9: 1, 11: 5, 14: 1, 15: 1, 20: 1}
LONGVIDEOBENCH = {1: 376, 2: 232, 3: 91, 4: 41, 5: 12}
SIZES = ("3", "1/3/3/12", "half in one clip", "MLVU", "LongVideoBench")


def sizes_of(kind, num_clips):
    """(G,) questions of every clip."""
    if kind == "half in one clip":
        return np.array([3] * (num_clips - 1) + [3 * (num_clips - 1)])
    if kind in ("MLVU", "LongVideoBench"):
        counts = MLVU if kind == "MLVU" else LONGVIDEOBENCH
        every = np.repeat(list(counts), list(counts.values()))
        return every[np.linspace(0, len(every) - 1, num_clips).round().astype(int)]
    return np.resize([int(size) for size in kind.split("/")], num_clips)


def plain_error(sums, sizes, mean):
    """Cluster-robust standard error without corrections for clips of unequal size."""
    residuals = sums - sizes * mean
    return math.sqrt(len(sizes) / (len(sizes) - 1) * float(residuals @ residuals)) / sizes.sum()


def plain_accuracy(right, sizes):
    """Wilson's interval at the effective size that the plain standard error gives."""
    total, value = sizes.sum(), right.sum() / sizes.sum()
    effective = total**2 / float(sizes @ sizes)
    if 0 < value < 1:
        deff = max(1.0, plain_error(right, sizes, value) ** 2 * total / (value * (1 - value)))
        effective = total / deff * (z_quantile(0.95) / t_quantile(0.975, len(sizes) - 1)) ** 2
    return wilson_interval(value, effective, 0.95)


def score_rows(num_runs):
    """Coverage for accuracies (beta-binomial) and for means of scores that vary within clips."""
    rng = np.random.default_rng(0)
    for kind, clips, base, icc in itertools.product(SIZES, CLIPS, BASES, (0.05, 0.3, 0.6)):
        sizes = sizes_of(kind, clips)
        weight = 1 / icc - 1
        chances = rng.beta(base * weight, (1 - base) * weight, (num_runs, clips))
        rights = rng.binomial(sizes, chances).astype(float)
        covered = np.zeros(3)
        # A score is its clip's level, moved by independent noise that keeps it within [0, 1].
        noise = rng.uniform(-1, 1, (num_runs, clips)) / np.sqrt(sizes)
        scores = sizes * (chances + noise * np.minimum(chances, 1 - chances))
        for right in rights:
            own, (low, high) = accuracy_of_clips(right, sizes), plain_accuracy(right, sizes)
            covered[:2] += low <= base <= high, own.low <= base <= own.high
        means = [mean_of_clips(score, sizes) for score in scores[: num_runs // 4]]
        covered[2] = 4 * sum(mean.low <= base <= mean.high for mean in means)
        before, after, mean = 100 * covered / num_runs
        yield f"| {kind} | {clips} | {base} | {icc} | {before:.1f} | {after:.1f} | {mean:.1f} |"


def paired_rows(num_runs):
    """Coverage where an interval is given, before and after, and over all runs."""
    rng = np.random.default_rng(0)
    for kind, clips, base, diff, (name, share) in itertools.product(
        SIZES, CLIPS, BASES, (0.0, 0.05), (("none", 0.0), ("strong", 0.5))
    ):
        sizes = sizes_of(kind, clips)
        gained, lost, truth = draw_changes(rng, num_runs, sizes, base, diff, by_clip=share)
        results = [compare_clips(*one, sizes) for one in zip(gained, lost, strict=True)]
        covered = np.array([r.low <= truth <= r.high for r in results])
        few = np.array([r.too_few_clips for r in results])
        reach = t_quantile(0.975, clips - 1)
        before = np.array(
            [
                abs(r.difference - truth) <= reach * plain_error(change, sizes, r.difference)
                for r, change in zip(results, gained - lost, strict=True)
            ]
        )
        changed = np.mean([r.num_changed_clips for r in results])
        rejected = f"{100 * np.mean([r.p_value < 0.05 for r in results]):.1f}" if not diff else ""
        trusted = (~few).mean() >= 0.05
        shares = [f"{100 * one[~few].mean():.1f}" if trusted else "-" for one in (before, covered)]
        yield (
            f"| {kind} | {clips} | {base} | {diff} | {name} | {changed:.1f} | "
            f"{100 * few.mean():.0f} | {' | '.join(shares)} | {100 * covered.mean():.1f} | "
            f"{rejected} |"
        )


def main() -> None:
    """Simulate and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    num_runs = parser.parse_args().runs
    print(f"# Intervals of runs with a known truth, {num_runs} runs a row\n")
    print("## Accuracy and mean scores: coverage of the 95 % interval\n")
    print("| questions a clip | clips | base | correlation | plain % | accuracy % | mean score % |")
    print("|---|---|---|---|---|---|---|", *score_rows(num_runs), sep="\n", flush=True)
    print("\n## Paired differences: coverage of the 95 % interval, equal runs called different\n")
    print(
        "| questions a clip | clips | base | difference | clustering | changed | too few % | "
        "plain % | interval % | all % | rejected % |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|", *paired_rows(num_runs), sep="\n")


if __name__ == "__main__":
    main()
