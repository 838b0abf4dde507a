"""What sharing and overlapping save: figures of the whole pipeline against their bars.

    OMP_NUM_THREADS=1 python tests/perf/bench_pipeline.py [--threads 1] [--only PART ...]

Everything runs the pipeline's own stages, on the embedded model with generated clips (`tiny`) and,
where its size distorts a figure, on a LLaVA-OneVision-0.5B of real width with fewer layers and
random weights (`cut`, see `pipeline_cases`).

sweep     Vision side (decode + encode + compress, as recorded in the caches) of 21 cells, 7 methods
          x 3 retentions, against one cell, Tango at 0.1, both from empty caches; in a loop they
          take turns clip by clip, and ratios are of one clip's two times. Wall time is what `tango
          precompute` waits for the clips after the warm-up, so the writing of caches is in it. The
          fewer blocks of `cut` take share from the encoder: its ratio is above that of 27 blocks.
overlap   Wall time of a sweep on Ray against the busy time of its slowest stage for the same clips.
          The wall clock starts when the warm-up clips have arrived: Ray's start and the loading of
          the models, reported beside it, do not grow with the number of clips. A stage's busy time
          is what it reports: rows that travel, cache files that are written and Ray's own work
          count as wall time only.
warm      The same sweep once more: how many clips are decoded and encoded.
prefix    Three questions about a clip with all tokens kept, answered from one prefix and one by one
          (every question from nothing), alternating; ratios are of one clip's two times.

Results go to tests/perf/results/pipeline.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from pipeline_cases import (
    ONE_CELL,
    SWEEP,
    answer_ms,
    cut_model,
    empty_cache,
    execute,
    execute_in_turn,
    make_plan,
    save_cut_checkpoint,
    vision_ms,
)
from timing import about_machine, spread

from pipeline.clips import ANSWER_QUESTIONS, COMPRESS_VIDEO, DECODE_VIDEO
from pipeline.rows import clips_in

TINY: dict[str, Any] = {"name": "tiny"}
BARS = {"sweep": "<= 1.25", "overlap": "<= 1.15", "warm": "0", "prefix": ">= 2"}
NUM_QUESTIONS = 3

Figures = list[dict[str, Any]]


def main() -> None:
    """Run all parts and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=BARS, help="the results are not written")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    parts: dict[str, Callable[[Path, dict[str, Any]], Figures]] = {
        "sweep": sweep,
        "prefix": prefix,
        "overlap": overlap_and_warm,
    }
    results: dict[str, Any] = {"machine": about_machine(), "figures": []}
    with TemporaryDirectory(prefix="tango-bench-") as folder:
        cut = cut_model(save_cut_checkpoint(Path(folder) / "cut"))
        for name, part in parts.items():
            if options.only and name not in options.only:
                continue
            started = time.perf_counter()
            for figure in part(Path(folder) / "clips", cut):
                results["figures"].append({**figure, "bar": BARS[figure["part"]]})
                print(json.dumps(results["figures"][-1]), flush=True)
            print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    text = markdown(results)
    print(text)
    if not options.only:
        folder = Path(__file__).parent / "results"
        (folder / "pipeline.json").write_text(json.dumps(results, indent=1) + "\n")
        (folder / "pipeline.md").write_text(text)


def sweep(clips: Path, cut: dict[str, Any]) -> Figures:
    """The vision side of 21 cells against that of one."""
    return [
        *_sweep("tiny, local", clips, TINY, "local", num_clips=41, warm_up=1),
        *_sweep("tiny, ray", clips, TINY, "ray", num_clips=64, warm_up=16),
        *_sweep("cut, local", clips, cut, "local", num_clips=4, warm_up=1),
    ]


def _sweep(
    case: str, clips: Path, model: dict[str, Any], executor: str, *, num_clips: int, warm_up: int
) -> Figures:
    """Busy and wall time of both for the same clips, the first ones left out."""
    with empty_cache() as first, empty_cache() as second:
        plans = [
            make_plan(
                clips, cache, num_clips, answer=False, executor=executor, methods=cells, model=model
            )
            for cache, cells in ((first, ONE_CELL), (second, SWEEP))
        ]
        # Two jobs at once would share Ray's workers: there they run one after the other.
        runs = execute_in_turn(plans) if executor == "local" else [execute(*p) for p in plans]
        times = [vision_ms(plan) for plan, _ in plans]
    walls, late = zip(*(run.steady(warm_up) for run in runs), strict=True)
    measured = sorted({row.video_id for row in late[0]} & {row.video_id for row in late[1]})
    one, many = ([found[video] for video in measured] for found in times)
    ratios = [sum(b.values()) / sum(a.values()) for a, b in zip(one, many, strict=True)]
    about = {
        "clips": len(measured),
        "stages_ms": {
            name: {stage: round(median(c[stage] for c in cells), 1) for stage in cells[0]}
            for name, cells in (("one", one), ("many", many))
        },
    }
    wall = round(walls[1] / walls[0], 3)
    return [
        {"part": "sweep", "case": f"{case}: busy", "figure": spread(ratios), **about},
        {"part": "sweep", "case": f"{case}: wall", "figure": wall, **about},
    ]


def overlap_and_warm(clips: Path, cut: dict[str, Any]) -> Figures:
    """A sweep with answers on Ray: how well stages overlap, and what is left to do in a second."""
    del cut
    figures = []
    recipe = {"methods": SWEEP, "model": TINY, "executor": "ray"}
    with empty_cache() as cache:
        plan, settings = make_plan(clips, cache, 80, answer=True, **recipe)
        run = execute(plan, settings)
        seconds, rows = run.steady(warm_up=16)
        times = vision_ms(plan)
        stages = {
            "decode": sum(times[row.video_id]["decode"] for row in rows) / 1e3,
            "compress": sum(
                times[row.video_id]["encode"] + times[row.video_id]["compress"] for row in rows
            )
            / 1e3,
            "answer": sum(answer_ms(row.answers) for row in rows) / 1e3,
        }
        figures.append(
            {
                "part": "overlap",
                "case": f"sweep of 21 cells, {len(rows)} clips, tiny, ray",
                "figure": round(seconds / max(stages.values()), 3),
                "wall_s": round(seconds, 2),
                "busy_s": {stage: round(value, 2) for stage, value in stages.items()},
                "before_first_clip_s": round(run.arrived_s[0], 2),
            }
        )
        plan, settings = make_plan(clips, cache, 80, answer=True, **recipe)
        again = execute(plan, settings).rows
        for stage in ("decode", "encode"):
            count = sum(vars(row)[f"{stage}_ms"] is not None for row in again)
            case = f"second run, {len(again)} clips: {stage}s"
            figures.append({"part": "warm", "case": case, "figure": count})
    return figures


def prefix(clips: Path, cut: dict[str, Any]) -> Figures:
    """Three questions per clip from one prefix, and one by one, at full tokens."""
    return [
        _prefix("tiny", clips, TINY, num_clips=20),
        _prefix("tiny, 32 frames", clips, {**TINY, "num_frames": 32}, num_clips=6),
        _prefix("cut", clips, cut, num_clips=1),
    ]


def _prefix(case: str, clips: Path, model: dict[str, Any], num_clips: int) -> dict[str, Any]:
    """Time the answer stage both ways, clip by clip."""
    with empty_cache() as cache:
        recipe = {"methods": [{"name": "full"}], "model": model, "executor": "local"}
        plan, settings = make_plan(clips, cache, num_clips + 1, answer=True, **recipe)
        decode = DECODE_VIDEO.start(plan, settings)
        compress = COMPRESS_VIDEO.start(plan, settings)
        stage = {
            way: ANSWER_QUESTIONS.start(plan, replace(settings, share_prefix=way == "shared"))
            for way in ("shared", "alone")
        }
        times: dict[str, list[float]] = {"shared": [], "alone": []}
        for row in clips_in(plan.clips):
            row = replace(row, questions=json.dumps(json.loads(row.questions)[:NUM_QUESTIONS]))
            row = compress(decode(row))
            said = {}
            for way, answer in stage.items():
                started = time.perf_counter()
                done = answer(row)
                times[way].append((time.perf_counter() - started) * 1e3)
                said[way] = [reply["text"] for reply in done.answers]
            if len(said["shared"]) != NUM_QUESTIONS:
                raise RuntimeError(f"{row.video_id} has {len(said['shared'])} questions")
        prompt = [reply["prompt_tokens"] for reply in done.answers]
    # The first clip warms both up.
    pairs = list(zip(times["shared"], times["alone"], strict=True))[1:]
    return {
        "part": "prefix",
        "case": f"{case}, {max(prompt)} prompt tokens",
        "figure": spread([alone / shared for shared, alone in pairs]),
        "shared_ms": spread([shared for shared, _ in pairs]),
        "one_by_one_ms": spread([alone for _, alone in pairs]),
        "new_tokens": sum(reply["new_tokens"] for reply in done.answers),
        "clips": len(pairs),
    }


def is_met(figure: dict[str, Any]) -> bool:
    """Whether a figure, or the median of a spread one, meets its bar."""
    value = figure["figure"]["median"] if isinstance(figure["figure"], dict) else figure["figure"]
    *sign, bar = figure["bar"].split()
    limit = float(bar)
    return bool(value >= limit if sign == [">="] else value <= limit)


def markdown(results: dict[str, Any]) -> str:
    """The figures against their bars, one line each."""
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    lines = ["# The pipeline", "", about, "", "Ratios as minimum / median / maximum.", ""]
    lines += ["| part | case | figure | bar | |", "|---|---|---|---|---|"]
    for figure in results["figures"]:
        value = figure["figure"]
        shown = (
            " / ".join(f"{number:.2f}" for number in value.values())
            if isinstance(value, dict)
            else str(value)
        )
        met = "met" if is_met(figure) else "MISSED"
        lines.append(f"| {figure['part']} | {figure['case']} | {shown} | {figure['bar']} | {met} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
