"""`tango measure-load`: throughput and latency of answering under load, beside accuracy.

A request is one question about one clip under one method: its token set is read from the cache, and
the language model answers it. In a closed loop a fixed number of requests is always in flight; in
an open loop requests arrive at random times at a given mean rate, whether or not earlier ones are
answered. All loads of all cells ask the same questions in the same random order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.console import Console

from jobs.config.recipe import Job
from jobs.report.formatting import Table
from jobs.report.theme import LIGHT, Theme, new_figure, png
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


@dataclass(frozen=True)
class Load:
    """How requests arrive.

    Attributes:
        kind: `closed`: `level` requests are always in flight; `open`: `level` requests arrive per
            second on average, at exponentially distributed intervals.
        level: See `kind`.
    """

    kind: str
    level: float

    def __str__(self) -> str:
        unit = " at once" if self.kind == "closed" else "/s"
        return f"{self.level:g}{unit}"

    def arrivals(self, number: int) -> list[float]:
        """Seconds from the start at which the requests of an open loop arrive."""
        pauses = np.random.default_rng(_SEED).exponential(1 / self.level, number)
        return [float(at) for at in np.cumsum(pauses)]


@dataclass(frozen=True)
class Served:
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


@dataclass(frozen=True)
class LoadRow:
    """One cell under one load.

    Attributes:
        engine: `native` or `vllm`.
        cell: Name of the method with its options.
        kind: See `Load`.
        level: See `Load`.
        requests: Number of requests.
        failed: How many of them ended with an error.
        seconds: From the first arrival to the last reply.
        requests_per_s: Answered requests per second.
        tokens_per_s: Generated tokens per second.
        ttft_p50_ms: Median time from arrival to first token, reading the cache included.
        ttft_p95_ms: 95th percentile of it.
        total_p50_ms: Median time from arrival to the end of the reply.
        read_share: Share of the requests' time in which their token set was read.
        first_share: Share between reading and first token: waiting and prefill.
        rest_share: Share after the first token.
        peak_gib: Largest memory in use, see `PeakMemory`.
        peak_of: `device` or `process`.
        prompt_tokens: Mean length of the prompts.
        accuracy: Mean score of the questions; `None` if replies had a fixed length.
        lost: Difference to `full` under the same load, in [-1, 1], with its 95 % interval.
        speedup: Requests per second over those of `full` under the same load.
    """

    engine: str
    cell: str
    kind: str
    level: float
    requests: int
    failed: int
    seconds: float
    requests_per_s: float
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    total_p50_ms: float
    read_share: float
    first_share: float
    rest_share: float
    peak_gib: float
    peak_of: str
    prompt_tokens: float
    accuracy: float | None = None
    lost: tuple[float, float, float] | None = None
    speedup: float | None = None

    @property
    def is_equal(self) -> bool:
        """Whether no loss of accuracy against `full` is shown."""
        return self.lost is not None and self.lost[2] >= 0


@dataclass(frozen=True)
class _Request:
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
    rows: list[LoadRow] = []
    for method in plan.methods:
        prompts = _prompts(plan, method, reply_tokens, shared_prefixes)
        serve(model, asked[:_WARM_UP], prompts, Load("closed", _WARM_UP), batch_tokens)
        for load in loads:
            memory.reset()
            started = time.perf_counter()
            served = serve(model, asked, prompts, load, batch_tokens)
            seconds = time.perf_counter() - started
            row = _row(job.engine, method.name, load, served, seconds)
            row = replace(row, peak_gib=memory.gib(), peak_of=memory.kind)
            if reply_tokens is None:
                scores[method.name, load] = _scores(asked, served)
                row = replace(row, accuracy=float(np.mean(scores[method.name, load])))
            rows.append(row)
            console.print(f"{method.name}, {load}: {row.requests_per_s:.2f} requests/s")
    clusters = [request.clip.video_id for request in asked]
    rows = _compared(rows, scores, clusters)
    rows = _merged(folder / LOAD_FILE, rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOAD_FILE).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    table = load_table(rows)
    (folder / "load.md").write_text(f"{table.markdown()}\n\n{goodput(rows)}\n")
    figure = load_plot(rows, LIGHT)
    if figure is not None:
        (folder / "load.png").write_bytes(png(figure))
    console.print("\n".join(table.plain(rule=True)), markup=False, highlight=False, soft_wrap=True)
    console.print(goodput(rows), markup=False, highlight=False)
    return 0


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
            if arrivals is None:
                if len(in_flight) >= load.level:
                    break
                arrived = now
            else:
                arrived = start + arrivals[number]
                if arrived > now:
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


def _row(engine: str, cell: str, load: Load, served: Sequence[Served], seconds: float) -> LoadRow:
    """Reduce the requests of one measurement; memory and accuracy are added later.

    Raises:
        InputError: If all requests failed.
    """
    answered = [one for one in served if isinstance(one.answer, Answer)]
    answers = [one.answer for one in served if isinstance(one.answer, Answer)]
    if not answered:
        raise InputError(f"{cell}: all {len(served)} requests failed, first: {served[0].answer}")
    first = np.array([one.first for one in answered])
    total = np.array([one.total for one in answered])
    read = np.array([one.read for one in answered])
    whole = float(total.sum())
    return LoadRow(
        engine=engine,
        cell=cell,
        kind=load.kind,
        level=load.level,
        requests=len(served),
        failed=len(served) - len(answered),
        seconds=seconds,
        requests_per_s=len(answered) / seconds,
        tokens_per_s=sum(one.new_tokens for one in answers) / seconds,
        ttft_p50_ms=float(np.percentile(first, 50)) * 1e3,
        ttft_p95_ms=float(np.percentile(first, 95)) * 1e3,
        total_p50_ms=float(np.percentile(total, 50)) * 1e3,
        read_share=float(read.sum()) / whole,
        first_share=float((first - read).sum()) / whole,
        rest_share=float((total - first).sum()) / whole,
        peak_gib=0.0,
        peak_of="",
        prompt_tokens=float(np.mean([one.prompt_tokens for one in answers])),
    )


def _compared(
    rows: Sequence[LoadRow],
    scores: Mapping[tuple[str, Load], Sequence[float]],
    clusters: Sequence[str],
) -> list[LoadRow]:
    """Add speed-up and difference to `full` under the same load."""
    full = {Load(row.kind, row.level): row for row in rows if row.cell == "full"}
    compared = []
    for row in rows:
        load = Load(row.kind, row.level)
        if load in full:
            row = replace(row, speedup=row.requests_per_s / full[load].requests_per_s)
            if row.cell != "full" and (row.cell, load) in scores:
                found = compare_paired(scores[row.cell, load], scores["full", load], clusters)
                if found is not None:
                    row = replace(row, lost=(found.difference, found.low, found.high))
        compared.append(row)
    return compared


def _merged(path: Path, rows: Sequence[LoadRow]) -> list[LoadRow]:
    """The rows beside those of an earlier measurement with another engine, cell or load."""
    new = {(row.engine, row.cell, row.kind, row.level) for row in rows}
    earlier = [LoadRow(**one) for one in json.loads(path.read_text())] if path.is_file() else []
    kept = [one for one in earlier if (one.engine, one.cell, one.kind, one.level) not in new]
    return [*kept, *rows]


def load_table(rows: Sequence[LoadRow]) -> Table:
    """One line per engine, cell and load."""
    header = [
        *("engine", "cell", "load", "requests/s", "vs full", "TTFT p50 ms", "p95 ms"),
        *("tokens/s", "peak GiB", "prompt", "read %", "first %", "rest %", "accuracy %", "vs full"),
        "failed",
    ]
    lines = [
        [
            row.engine,
            row.cell,
            str(Load(row.kind, row.level)),
            f"{row.requests_per_s:.2f}",
            "-" if row.speedup is None else f"{row.speedup:.2f}x",
            f"{row.ttft_p50_ms:.0f}",
            f"{row.ttft_p95_ms:.0f}",
            f"{row.tokens_per_s:.0f}",
            f"{row.peak_gib:.2f}",
            f"{row.prompt_tokens:.0f}",
            *(f"{100 * one:.0f}" for one in (row.read_share, row.first_share, row.rest_share)),
            "-" if row.accuracy is None else f"{100 * row.accuracy:.1f}",
            "-" if row.lost is None else f"{100 * row.lost[0]:+.1f}",
            str(row.failed),
        ]
        for row in rows
    ]
    return Table(header, lines, text_columns=3)


def goodput(rows: Sequence[LoadRow]) -> str:
    """Per engine and load, the fastest cell without a shown loss of accuracy against `full`."""
    lines = []
    scored = [row for row in rows if row.accuracy is not None]
    for engine, kind, level in dict.fromkeys((row.engine, row.kind, row.level) for row in scored):
        own = [row for row in scored if (row.engine, row.kind, row.level) == (engine, kind, level)]
        equal = [row for row in own if row.cell == "full" or row.is_equal]
        if not any(row.cell == "full" for row in equal):
            continue
        best = max(equal, key=lambda row: row.requests_per_s)
        lines.append(
            f"{engine}, {Load(kind, level)}: {best.requests_per_s:.2f} requests/s at equal "
            f"accuracy, with {best.cell} ({best.speedup or 1:.2f}x of full)"
        )
    return "\n".join(lines)


def load_plot(rows: Sequence[LoadRow], theme: Theme) -> Figure | None:
    """Requests per second over accuracy, one point per cell and load; one panel per engine.

    Returns:
        The figure; `None` if no row has an accuracy.
    """
    scored = [row for row in rows if row.accuracy is not None]
    engines = list(dict.fromkeys(row.engine for row in scored))
    if not engines:
        return None
    figure, panels = new_figure((5.2 * len(engines), 4.4), theme, 1, len(engines))
    cells = list(dict.fromkeys(row.cell for row in scored))
    handles = {}
    rates = [row.requests_per_s for row in scored]
    for panel, engine in zip(panels, engines, strict=True):
        for index, cell in enumerate(cells):
            own = [row for row in scored if (row.engine, row.cell) == (engine, cell)]
            colour = theme.series[index % len(theme.series)]
            x = [100 * (row.accuracy or 0.0) for row in own]
            y = [row.requests_per_s for row in own]
            (line,) = panel.plot(x, y, marker="o", color=colour, linewidth=0.8, label=cell)
            handles[cell] = line
            for row, at in zip(own, zip(x, y, strict=True), strict=True):
                text = str(Load(row.kind, row.level)).removesuffix(" at once")
                panel.annotate(
                    text, at, xytext=(4, 3), textcoords="offset points", fontsize=7,
                    color=theme.foreground,
                )  # fmt: skip
        panel.set_yscale("log")
        panel.set_ylim(0.8 * min(rates), 1.4 * max(rates))
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_title(engine, loc="left", fontweight="bold", color=theme.foreground)
        panel.set_xlabel("accuracy %")
        panel.set_ylabel("requests/s")
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center",
        ncols=min(4, len(handles)), frameon=False, labelcolor=theme.foreground,
        title="numbers: requests at once, or per second", title_fontsize=8,
    )  # fmt: skip
    return figure
