"""Run the stages in one process, without Ray."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any, cast

from pipeline.clips import Clip, Stage, stages_of
from pipeline.errors import DeviceError, WorkerError
from pipeline.executors.attempts import MAX_ATTEMPTS
from pipeline.metrics import SKIPPED, JobBoard, Metered, stream_of
from pipeline.plan import Plan
from pipeline.resources.devices import HALVES
from pipeline.rows import Result, clips_in, filled
from pipeline.runtime.clock import SYSTEM_CLOCK
from pipeline.settings import Settings
from pipeline.stages.threads import done_ahead


def stream(plan: Plan, settings: Settings, board: JobBoard | None = None) -> Iterator[Result]:
    """Yield a result per clip of the plan, in the plan's order.

    The next clip is compressed as soon as the answer stage has capacity, and the one after it is
    decoded meanwhile. A profile processes its first successful clip twice, as a warm-up. The stages
    report their progress to the board.

    Raises:
        WorkerError: If this process can no longer use its GPU.
    """
    board = board or JobBoard()
    board.plan(plan)
    stages = _Stages(plan, settings, board)
    clips = clips_in(plan.clips)
    try:
        for some in stages.single(clips) if settings.profile else [clips]:
            with closing(stages.fill(some)) as ready:
                if not plan.answer:
                    yield from map(filled, ready)
                elif first := next(ready, None):  # loads the language model with the first clip
                    for done in stages.answer(chain([first], ready)):
                        if not settings.profile or stages.is_warm or done.has_failed:
                            yield done
                        else:
                            stages.is_warm = True
    except DeviceError as error:
        raise WorkerError(
            f"the GPU failed on clip {stages.last[1]} of {stages.last[0]}, or "
            f"on one that was answered beside it ({error}), and is lost for this process; continue "
            "with --resume, or set executor to ray, which starts a new process and gives a clip up "
            f"after {MAX_ATTEMPTS} attempts"
        ) from error


class _Stages:
    """The stages of a plan; each is started, and loads its model, when the first clip needs it."""

    def __init__(self, plan: Plan, settings: Settings, board: JobBoard) -> None:
        self.plan, self.settings, self.board = plan, settings, board
        self.last = ("", "")
        self.is_warm = False
        self._started: dict[str, Callable[[Clip], Any]] = {}
        self._began: dict[str, float] = {}

    def single(self, clips: Iterable[Clip]) -> Iterator[list[Clip]]:
        """Yield clips one by one, and the clip of the warm-up once more."""
        for clip in clips:
            was_warm = self.is_warm
            yield [clip]
            if self.is_warm and not was_warm:
                yield [clip]

    def fill(self, clips: Iterable[Clip]) -> Generator[Clip]:
        """Yield clips after the cache-filling stages; the next clip is decoded meanwhile."""
        decode, *others = (stage for stage in stages_of(self.plan) if not stage.on_hits)

        def decoded(clip: Clip) -> Clip:
            if not decode.takes(clip):
                return clip
            done: Clip = self._begin(decode)(clip)
            return self._end(decode, clip, done)

        with closing(done_ahead(clips, decoded, 1, lambda clip: 1)) as coming:
            for clip, decoding in coming:
                self.last = clip.name
                stages = [stage for stage in others if stage.takes(clip)]
                for stage in stages:
                    self._start(stage)  # while the first clip is decoded
                done = decoding.result()
                for stage in stages:
                    done = self._end(stage, done, self._begin(stage)(done))
                yield done

    def answer(self, clips: Iterable[Clip]) -> Iterator[Result]:
        """Run clips through the last stage."""
        stage = stages_of(self.plan)[-1]
        run = Metered(stream_of(self._start(stage)), stage.name, self.board)
        return cast("Iterator[Result]", run(clips))

    def _begin(self, stage: Stage) -> Callable[[Clip], Any]:
        """Report that a stage takes a clip; returns the stage."""
        run = self._start(stage)
        self.board.started(stage.name)
        self._began[stage.name] = SYSTEM_CLOCK.monotonic()
        return run

    def _end(self, stage: Stage, clip: Clip, done: Clip) -> Clip:
        """Report that a stage has finished a clip; returns the finished clip."""
        status = done.status if clip.status == "ok" else SKIPPED
        seconds = SYSTEM_CLOCK.monotonic() - self._began[stage.name]
        self.board.finished(stage.name, seconds, status)
        return done

    def _start(self, stage: Stage) -> Callable[[Clip], Any]:
        """Start a stage unless it is started.

        Raises:
            WorkerError: If its half of the model does not fit into the GPU's memory.
        """
        if stage.name not in self._started:
            try:
                self._started[stage.name] = stage.start(self.plan, self.settings)
            except RuntimeError as error:
                if type(error).__name__ != "OutOfMemoryError":  # torch's, not loaded for decoding
                    raise
                reason = " ".join(str(error).split())[:200]
                raise WorkerError(
                    f"no GPU has room for the {HALVES.get(stage.name, stage.name)} ({reason}); set "
                    "model.dtype to bfloat16, or executor to ray with pools that give each half a "
                    "GPU, or model.device to cpu"
                ) from error
        return self._started[stage.name]
