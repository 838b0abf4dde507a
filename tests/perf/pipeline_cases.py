"""What the pipeline's benchmarks run, and the figures of their parts.

Everything runs the pipeline's own stages, on the embedded model with generated clips (`tiny`) and,
where its size distorts a figure, on a LLaVA-OneVision-0.5B of real width with fewer layers and
random weights (`cut`).

sweep     Vision side (decode + encode + compress, as recorded in the caches) of 21 cells, 7 methods
          x 3 retentions, against one cell, Tango at 0.1, both from empty caches; in a loop they
          take turns clip by clip, and ratios are of one clip's two times. Wall time is what `tango
          precompute` waits for the clips after the warm-up, so the writing of caches is in it. The
          fewer blocks of `cut` take share from the encoder: its ratio is above that of 27 blocks.
overlap   Wall time of a sweep on Ray against the busy time of its slowest stage for the same clips.
          The wall clock starts when the warm-up clips have arrived: Ray's start and the loading of
          the models do not grow with the number of clips. A stage's busy time is what it reports:
          rows that travel, cache files that are written and Ray's own work count as wall time only.
          The same sweep once more: how many clips are decoded and encoded.
prefix    Three questions about a clip with all tokens kept, answered from one prefix and one by one
          (every question from nothing), alternating; ratios are of one clip's two times.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from jobs_for_tests import job, plan_of

from jobs.run.build import make_settings
from pipeline.clips import ANSWER_QUESTIONS, COMPRESS_VIDEO, DECODE_VIDEO
from pipeline.plan import Plan
from pipeline.rows import AnswerRow, Result, clips_in
from pipeline.run import run
from pipeline.runtime.background import done_ahead
from pipeline.settings import Settings

RETENTIONS = [0.1, 0.2, 0.3]
NAMES = ("tango", "visionzip", "vidcom2", "fastvid", "holitom", "divprune", "prunevid")
SWEEP = [{"name": name, "retention": RETENTIONS} for name in NAMES]
ONE_CELL = [{"name": "tango", "retention": 0.1}]

TINY: dict[str, Any] = {"name": "tiny"}
NUM_QUESTIONS = 3

# A case, and its ratios.
Figure = tuple[str, list[float]]


@dataclass(frozen=True)
class Run:
    """One execution of a plan.

    Attributes:
        rows: A result per clip, in the order of arrival.
        arrived_s: When each arrived, since the execution was asked for.
    """

    rows: tuple[Result, ...]
    arrived_s: tuple[float, ...]

    def steady(self, warm_up: int) -> tuple[float, tuple[Result, ...]]:
        """Seconds from the arrival of the last warm-up clip to the end, and what came in them."""
        if not 0 < warm_up < len(self.rows):
            raise ValueError(f"warm_up must be in [1, {len(self.rows) - 1}], got {warm_up}")
        return self.arrived_s[-1] - self.arrived_s[warm_up - 1], self.rows[warm_up:]


def make_plan(
    clips: Path, cache: Path, num_clips: int, *, answer: bool, executor: str, **recipe: Any
) -> tuple[Plan, Settings]:
    """A job over generated clips, ready to run."""
    wanted = job(clips, limit=num_clips, executor=executor, **recipe)
    return plan_of(wanted, cache, answer=answer), make_settings(
        wanted, None, executor, wanted.pools
    )


def execute(plan: Plan, settings: Settings) -> Run:
    """Run a plan and take the time of every arrival.

    Raises:
        RuntimeError: If a clip fails: what is faster for having failed is no measurement.
    """
    (found,) = execute_in_turn([(plan, settings)])
    return found


def execute_in_turn(plans: Sequence[tuple[Plan, Settings]]) -> list[Run]:
    """Run local plans clip by clip in turn, so that a busy machine slows all of them.

    Each has its own clock, which stands while the others run. So of several none decodes its next
    clip while another one is at work.

    Raises:
        RuntimeError: As `execute`.
    """
    if len(plans) > 1:
        in_turn = lambda jobs, work, most: done_ahead(jobs, work, 0)  # noqa: E731
        with patch("pipeline.executors.local.done_ahead", in_turn):
            return _in_turn(plans)
    return _in_turn(plans)


def _in_turn(plans: Sequence[tuple[Plan, Settings]]) -> list[Run]:
    """See `execute_in_turn`."""
    streams = [run(plan, settings) for plan, settings in plans]
    rows: list[list[Result]] = [[] for _ in plans]
    arrived: list[list[float]] = [[] for _ in plans]
    clocks = [0.0] * len(plans)
    going = list(range(len(plans)))
    while going:
        for index in tuple(going):
            started = time.perf_counter()
            row = next(streams[index], None)
            clocks[index] += time.perf_counter() - started
            if row is None:
                going.remove(index)
                continue
            raise_if_failed(row)
            rows[index].append(row)
            arrived[index].append(clocks[index])
    return [Run(tuple(r), tuple(a)) for r, a in zip(rows, arrived, strict=True)]


def raise_if_failed(row: Result) -> None:
    """Refuse a clip or an answer that failed."""
    statuses = {row.status, *(answer.status for answer in row.answers)}
    if not statuses <= {"ok", "unparsed"}:
        raise RuntimeError(f"{row.video_id}: {row.error or sorted(statuses)}")


def vision_ms(plan: Plan) -> dict[str, dict[str, float]]:
    """Video id -> milliseconds of `decode`, `encode` and `compress`, as the caches recorded them.

    A clip is decoded and encoded once, whatever the number of caches; compressing adds up.
    """
    found: dict[str, dict[str, float]] = {}
    columns = ["video_id", "decode_ms", "encode_ms", "compress_ms"]
    for cache in plan.caches.values():
        for name in cache.storage.names(".parquet"):
            (row,) = pq.read_table(cache.storage.path(name), columns=columns).to_pylist()
            clip = found.setdefault(
                row["video_id"],
                {"decode": row["decode_ms"], "encode": row["encode_ms"], "compress": 0.0},
            )
            clip["compress"] += row["compress_ms"]
    return found


def answer_ms(answers: Sequence[AnswerRow]) -> float:
    """Milliseconds the answer stage was busy with one clip.

    The questions of a method share their way to the first token and its read from the cache, so
    these count once per method, later tokens with every question.
    """
    total, seen = 0.0, set()
    for answer in answers:
        if answer.cell not in seen:
            seen.add(answer.cell)
            total += (answer.cache_read_ms or 0.0) + (answer.ttft_ms or 0.0)
        total += answer.decode_ms or 0.0
    return total


@contextmanager
def empty_cache() -> Iterator[Path]:
    """A directory for caches that is gone afterwards."""
    with TemporaryDirectory(prefix="tango-bench-") as folder:
        yield Path(folder)


def sweep(clips: Path, cut: dict[str, Any]) -> list[Figure]:
    """The vision side of 21 cells against that of one, at real width."""
    return _sweep("cut, local", clips, cut, "local", num_clips=4, warm_up=1)


def sweep_tiny(clips: Path, cut: dict[str, Any]) -> list[Figure]:
    """The same with a model that encodes a clip in the time in which 21 cells compress it."""
    del cut
    return [
        *_sweep("tiny, local", clips, TINY, "local", num_clips=41, warm_up=1),
        *_sweep("tiny, ray", clips, TINY, "ray", num_clips=64, warm_up=16),
    ]


def _sweep(
    case: str, clips: Path, model: dict[str, Any], executor: str, *, num_clips: int, warm_up: int
) -> list[Figure]:
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
    wall = walls[1] / walls[0]
    return [(f"{case}: busy", ratios), (f"{case}: wall", [wall])]


def overlap(clips: Path, cut: dict[str, Any]) -> list[Figure]:
    """A sweep with answers on Ray: how well stages overlap, and what is left to do in a second."""
    del cut
    recipe = {"methods": SWEEP, "model": TINY, "executor": "ray"}
    with empty_cache() as cache:
        plan, settings = make_plan(clips, cache, 80, answer=True, **recipe)
        run = execute(plan, settings)
        seconds, rows = run.steady(warm_up=16)
        times = vision_ms(plan)
        stages = (
            sum(times[row.video_id]["decode"] for row in rows) / 1e3,
            sum(times[row.video_id]["encode"] + times[row.video_id]["compress"] for row in rows)
            / 1e3,
            sum(answer_ms(row.answers) for row in rows) / 1e3,
        )
        figures = [(f"21 cells, {len(rows)} clips", [seconds / max(stages)])]
        plan, settings = make_plan(clips, cache, 80, answer=True, **recipe)
        again = execute(plan, settings).rows
        for stage in ("decode_video", "encode"):
            count = sum(getattr(row, f"{stage}_ms") is not None for row in again)
            # The limit of this part is at most 1.15: a single clip that is done again misses it.
            figures.append((f"second run: {stage}s of {len(again)} clips", [2.0 * count]))
    return figures


def prefix(clips: Path, cut: dict[str, Any]) -> list[Figure]:
    """Three questions per clip from one prefix, and one by one, at full tokens."""
    return [
        _prefix("tiny", clips, TINY, num_clips=20),
        _prefix("tiny, 32 frames", clips, {**TINY, "num_frames": 32}, num_clips=6),
        _prefix("cut", clips, cut, num_clips=1),
    ]


def _prefix(case: str, clips: Path, model: dict[str, Any], num_clips: int) -> Figure:
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
                said[way] = [reply.text for reply in done.answers]
            if len(said["shared"]) != NUM_QUESTIONS:
                raise RuntimeError(f"{row.video_id} has {len(said['shared'])} questions")
        prompt = [reply.prompt_tokens for reply in done.answers]
    # The first clip warms both up.
    pairs = list(zip(times["shared"], times["alone"], strict=True))[1:]
    ratios = [alone / shared for shared, alone in pairs]
    return f"{case}, {max(prompt)} prompt tokens", ratios


PARTS: dict[str, tuple[str, Callable[[Path, dict[str, Any]], list[Figure]]]] = {
    "sweep": ("<= 1.25", sweep),
    "sweep of the embedded model": ("<= 3.5", sweep_tiny),
    "prefix": (">= 2", prefix),
    "overlap": ("<= 1.15", overlap),
}
