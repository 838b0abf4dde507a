"""`tango measure-load`: throughput and latency of answering under load, beside accuracy.

A request is one question about one clip under one method: its token set is read from the cache, and
the language model answers it. In a closed loop a fixed number of requests is always in flight; in
an open loop requests arrive at random times at a given mean rate, whether or not earlier ones are
answered. All loads of all cells ask the same questions in the same random order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.console import Console

from jobs.config.recipe import Job
from jobs.report.formatting import DASH, Table
from jobs.report.theme import LIGHT, legend, new_figure, rendered
from jobs.run.build import build, make_plan
from pipeline.cache.directory import TokenCache
from pipeline.clips import Clip, questions_of, subtitles_of
from pipeline.plan import Plan, PlannedMethod
from pipeline.rows import clips_in
from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.benchmarks.scoring.judge import judge
from tango_core.errors import InputError
from tango_core.latency import PeakMemory
from tango_core.metrics import compare_paired
from tango_core.models import load_language_model
from tango_core.models.base import ClipPrompts, LanguageModel
from tango_core.models.language.engine import LayoutAndEngine
from tango_core.models.placement import resolve_device
from tango_core.types import Answer, Question

LOAD_FILE = "load.json"
_WARM_UP = 4
_SEED = 0
# What tells rows of `load.json` apart, and what makes rows comparable.
_KEY = ["engine", "cell", "kind", "level"]
_LOAD = ["engine", "kind", "level"]

Row = dict[str, Any]
"""One cell under one load, as in `load.json`.

`engine`, `cell`, and the load as `kind` and `level`; numbers of `requests` and of those that
`failed`; `seconds` from the first arrival to the last reply; `requests_per_s` and generated
`tokens_per_s`; `ttft_p50_ms` and `ttft_p95_ms` from arrival to first token, reading the cache
included, and `total_p50_ms` to the end of the reply; shares of the requests' time: `read_share`
(reading the token set), `first_share` (waiting and prefill) and `rest_share`; `peak_gib`, the
largest memory in use of `peak_of` (device or process); mean `prompt_tokens`; `accuracy`, null if
replies had a fixed length; and against `full` under the same load `lost` (difference in [-1, 1]
with its 95 % interval) and `speedup`.
"""


class Load(NamedTuple):
    """How requests arrive.

    Attributes:
        kind: `closed`: `level` requests are always in flight; `open`: `level` requests arrive per
            second on average, at exponentially distributed intervals.
        level: See `kind`.
    """

    kind: str
    level: float

    def __str__(self) -> str:
        return f"{self.level:g}" + (" at once" if self.kind == "closed" else "/s")

    def arrivals(self, number: int) -> list[float]:
        """Seconds from the start at which the requests of an open loop arrive."""
        pauses = np.random.default_rng(_SEED).exponential(1 / self.level, number)
        return [float(at) for at in np.cumsum(pauses)]


class Served(NamedTuple):
    """One answered request; times in seconds.

    Attributes:
        answer: The reply, or the error of the request.
        read: Time to read the token set.
        first: From the arrival to the first token; 0 for an error.
        total: From the arrival to the end of the reply.
    """

    answer: Answer | Exception
    read: float
    first: float
    total: float


class _Request(NamedTuple):
    clip: Clip
    question: Question
    protocol: Protocol


def measure_load(
    job: Job,
    cache_root: str,
    folder: Path,
    loads: Sequence[Load],
    console: Console,
    *,
    requests: int | None = None,
    reply_tokens: int | None = None,
    shared_prefixes: bool = False,
) -> int:
    """Measure every cell of a recipe under every load; write table, plot and `load.json`.

    Rows of other engines, cells and loads that `load.json` holds already stay.

    Args:
        job: The recipe.
        cache_root: Directory or URL of the caches, which hold all its clips.
        folder: Directory of the results.
        loads: The loads.
        console: Where progress and the table are printed.
        requests: Number of requests per measurement; `None` for all questions, at most 200.
        reply_tokens: Exact length of every reply, which is then not scored.
        shared_prefixes: Whether requests may share the prefill of a common beginning.

    Raises:
        InputError: If a clip is not in the caches.
    """
    built = build(replace(job, executor="local"))
    plan = make_plan(job, built, cache_root, answer=True)
    asked = _requests(plan, requests)
    model = load_language_model(plan.model)
    if reply_tokens is not None and isinstance(model, LayoutAndEngine):
        model.engine.eos_ids = frozenset()  # no token ends a reply
    batch_tokens = None if job.answer.batch_tokens == "auto" else job.answer.batch_tokens
    memory = PeakMemory(resolve_device(plan.model.device))
    scores: dict[tuple[str, Load], list[float]] = {}
    rows: dict[tuple[str, Load], Row] = {}
    for method in plan.methods:
        prompts = _prompts(plan, method, reply_tokens, shared_prefixes)
        serve(model, asked[:_WARM_UP], prompts, Load("closed", _WARM_UP), batch_tokens)
        for load in loads:
            memory.reset()
            started = time.perf_counter()
            served = serve(model, asked, prompts, load, batch_tokens)
            row = _measured(method.name, served, time.perf_counter() - started)
            row |= {"engine": job.engine, "cell": method.name, **load._asdict()}
            row |= {"peak_gib": memory.gib(), "peak_of": memory.kind}
            row |= {"accuracy": None, "lost": None, "speedup": None}
            if reply_tokens is None:
                scores[method.name, load] = _scores(asked, served)
                row["accuracy"] = float(np.mean(scores[method.name, load]))
            rows[method.name, load] = row
            console.print(f"{method.name}, {load}: {row['requests_per_s']:.2f} requests/s")
    clips = [request.clip.video_id for request in asked]
    for (cell, load), row in rows.items():
        if full := rows.get(("full", load)):
            row["speedup"] = row["requests_per_s"] / full["requests_per_s"]
        if full and cell != "full" and scores:
            found = compare_paired(scores[cell, load], scores["full", load], clips)
            row["lost"] = found and (found.difference, found.low, found.high)
    path = folder / LOAD_FILE
    before = json.loads(path.read_text()) if path.is_file() else []
    by_key = {tuple(row[name] for name in _KEY): row for row in (*before, *rows.values())}
    write_load(list(by_key.values()), folder, console)
    return 0


def write_load(rows: Sequence[Row], folder: Path, console: Console) -> None:
    """Write `load.json`, table and plot into a folder, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOAD_FILE).write_text(json.dumps(rows, indent=1) + "\n")
    table, fastest = load_table(rows), "\n".join(_fastest(rows))
    (folder / "load.md").write_text(f"{table.markdown()}\n\n{fastest}\n")
    if any(row["accuracy"] is not None for row in rows):
        (folder / "load.png").write_bytes(rendered(partial(load_plot, rows), LIGHT))
    text = "\n".join([*table.plain(rule=True), fastest])
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def serve(
    model: LanguageModel,
    requests: Sequence[_Request],
    prompts: Callable[[_Request], ClipPrompts],
    load: Load,
    batch_tokens: int | None,
) -> list[Served]:
    """Answer requests as they arrive; returns them in the order of `requests`."""
    session = model.session(batch_tokens)
    arrivals = load.arrivals(len(requests)) if load.kind == "open" else None
    found: dict[int, Served] = {}
    in_flight: dict[int, tuple[int, float, float, ClipPrompts]] = {}
    start, number = time.perf_counter(), 0
    while len(found) < len(requests):
        while number < len(requests):
            now = time.perf_counter()
            arrived = now if arrivals is None else start + arrivals[number]
            if arrived > now or (arrivals is None and len(in_flight) >= load.level):
                break
            try:
                asked = prompts(requests[number])
                read = time.perf_counter() - now
                session.add(asked)
                in_flight[id(asked)] = number, arrived, read, asked
            except Exception as error:
                found[number] = Served(error, 0.0, 0.0, time.perf_counter() - arrived)
            number += 1
        if session.busy:
            for asked, answers in session.step():
                index, arrived, read, _ = in_flight.pop(id(asked))
                total = time.perf_counter() - arrived
                if isinstance(answers, Exception):
                    found[index] = Served(answers, read, 0.0, total)
                else:
                    first = answers[0].first_token_at - arrived
                    found[index] = Served(answers[0], read, first, total)
        elif arrivals is not None and number < len(requests):
            time.sleep(max(0.0, start + arrivals[number] - time.perf_counter()))
    return [found[index] for index in range(len(requests))]


def _requests(plan: Plan, number: int | None) -> list[_Request]:
    """The questions of the plan's clips in a random order that is always the same."""
    clips = list(clips_in(plan.clips))
    missing = [clip for clip in clips if clip.missing or clip.status != "ok"]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(clips)} clips are not in the caches, for example "
            f"{missing[0].video_id}; run `tango precompute` with the same recipe and --cache first"
        )
    found = [
        _Request(clip, question, plan.protocols[clip.benchmark])
        for clip in clips
        for question in questions_of(clip)
    ]
    order = np.random.default_rng(_SEED).permutation(len(found))
    number = min(len(found), 200) if number is None else number
    return [found[order[index % len(found)]] for index in range(number)]


def _prompts(
    plan: Plan, method: PlannedMethod, reply_tokens: int | None, shared: bool
) -> Callable[[_Request], ClipPrompts]:
    """Function that reads a request's token set and builds its prompt."""
    cache: TokenCache = plan.caches[method.cache]

    def prompts(request: _Request) -> ClipPrompts:
        clip, protocol = request.clip, request.protocol
        video = cache.read(clip.clip_key).video
        times = tuple(video.timestamps.tolist())
        length_s = video.source.duration_s if video.source else times[-1]
        watched = Watched.of(plan.model.frames.num_frames, length_s, times[-1])
        prompt = protocol.prompt(
            request.question, subtitles_of(clip), replace(watched, times=times)
        )
        return ClipPrompts(
            video if clip.bounds is None else video.counted_from(clip.bounds[0]),
            [prompt],
            pruner=method.method.pruner,
            positions=method.method.compressor.positions,
            max_new_tokens=reply_tokens or protocol.max_new_tokens,
            share_prefix=shared,
        )

    return prompts


def _scores(requests: Sequence[_Request], served: Sequence[Served]) -> list[float]:
    """Score of every request; 0 for an error."""
    found = []
    for request, one in zip(requests, served, strict=True):
        text = one.answer.text if isinstance(one.answer, Answer) else None
        read = judge(text, request.question, request.protocol.read_choice)
        found.append(float(bool(read.correct)) if read.score is None else float(read.score))
    return found


def _measured(cell: str, served: Sequence[Served], seconds: float) -> Row:
    """Numbers and times of one measurement, as in `Row`.

    Raises:
        InputError: If all requests failed.
    """
    answers = [one.answer for one in served if isinstance(one.answer, Answer)]
    if not answers:
        raise InputError(f"{cell}: all {len(served)} requests failed, first: {served[0].answer}")
    times = [one[1:] for one in served if isinstance(one.answer, Answer)]
    read, first, total = np.array(times).T
    p50, p95 = (1e3 * np.percentile(first, percent) for percent in (50, 95))
    whole = float(total.sum())
    return {
        "requests": len(served),
        "failed": len(served) - len(answers),
        "seconds": seconds,
        "requests_per_s": len(answers) / seconds,
        "tokens_per_s": sum(one.new_tokens for one in answers) / seconds,
        "ttft_p50_ms": float(p50),
        "ttft_p95_ms": float(p95),
        "total_p50_ms": 1e3 * float(np.median(total)),
        "read_share": float(read.sum()) / whole,
        "first_share": float((first - read).sum()) / whole,
        "rest_share": float((total - first).sum()) / whole,
        "prompt_tokens": float(np.mean([one.prompt_tokens for one in answers])),
    }


# Heading, column, factor of its numbers, and their format.
_NUMBERS = (
    ("requests/s", "requests_per_s", 1, "{:.2f}"),
    ("vs full", "speedup", 1, "{:.2f}x"),
    ("TTFT p50 ms", "ttft_p50_ms", 1, "{:.0f}"),
    ("p95 ms", "ttft_p95_ms", 1, "{:.0f}"),
    ("tokens/s", "tokens_per_s", 1, "{:.0f}"),
    ("peak GiB", "peak_gib", 1, "{:.2f}"),
    ("prompt", "prompt_tokens", 1, "{:.0f}"),
    ("read %", "read_share", 100, "{:.0f}"),
    ("first %", "first_share", 100, "{:.0f}"),
    ("rest %", "rest_share", 100, "{:.0f}"),
    ("accuracy %", "accuracy", 100, "{:.1f}"),
    ("vs full", "lost", 100, "{:+.1f}"),
    ("failed", "failed", 1, "{}"),
)


def load_table(rows: Sequence[Row]) -> Table:
    """One line per engine, cell and load."""
    lines = []
    for row in rows:
        line = [row["engine"], row["cell"], str(Load(row["kind"], row["level"]))]
        for _, column, factor, form in _NUMBERS:
            value = row[column][0] if column == "lost" and row["lost"] else row[column]
            line.append(DASH if value is None else form.format(factor * value))
        lines.append(line)
    header = ["engine", "cell", "load", *(heading for heading, *_ in _NUMBERS)]
    return Table(header, lines, text_columns=3)


def _fastest(rows: Sequence[Row]) -> Iterator[str]:
    """Per engine and load, the fastest cell without a shown loss of accuracy against `full`."""
    scored = [row for row in rows if row["accuracy"] is not None]
    for engine, kind, level in dict.fromkeys(tuple(row[name] for name in _LOAD) for row in scored):
        own = [row for row in scored if [row[name] for name in _LOAD] == [engine, kind, level]]
        equal = [row for row in own if row["lost"] and row["lost"][2] >= 0]
        full = [row for row in own if row["cell"] == "full"]
        if full:
            best = max(full + equal, key=lambda row: row["requests_per_s"])
            yield (
                f"{engine}, {Load(kind, level)}: {best['requests_per_s']:.2f} requests/s at equal "
                f"accuracy, with {best['cell']} ({best['speedup']:.2f}x of full)"
            )


def load_plot(rows: Sequence[Row]) -> Figure:
    """Requests per second over accuracy, one point per cell and load; one panel per engine."""
    scored = pd.DataFrame([row for row in rows if row["accuracy"] is not None])
    engines = scored["engine"].unique()
    colours = {cell: f"C{at % 8}" for at, cell in enumerate(scored["cell"].unique())}
    figure, panels = new_figure((5.2 * len(engines), 4.4), columns=len(engines))
    rates = scored["requests_per_s"]
    for panel, engine in zip(panels, engines, strict=True):
        own_engine = scored[scored["engine"] == engine]
        for cell, own in own_engine.groupby("cell", sort=False):
            x, y = 100 * own["accuracy"], own["requests_per_s"]
            panel.plot(x, y, "o-", color=colours[cell], linewidth=0.8, label=str(cell))
        for row in own_engine.itertuples():
            at = 100 * row.accuracy, row.requests_per_s
            panel.annotate(f"{row.level:g}", at, (4, 3), textcoords="offset points", fontsize=7)
        panel.set_yscale("log")
        panel.set_ylim(0.8 * rates.min(), 1.4 * rates.max())
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_title(engine)
        panel.set_xlabel("accuracy %")
        panel.set_ylabel("requests/s")
    note = {"title": "numbers: requests at once, or per second", "title_fontsize": 8}
    where = {"loc": "outside lower center", "ncols": min(4, len(colours))}
    legend(figure, panels, **where, **note)
    return figure
