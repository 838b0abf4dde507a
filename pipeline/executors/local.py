"""Run the stages in one process, without Ray."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

from pipeline.errors import DeviceError, WorkerError
from pipeline.executors.attempts import MAX_ATTEMPTS
from pipeline.metrics import JobBoard, Metered
from pipeline.plan import Plan
from pipeline.resources.devices import HALVES
from pipeline.rows import Clip, Result, clips_in
from pipeline.runtime.background import iterate
from pipeline.settings import Settings
from pipeline.stages.declarations import Stage, filled, stages_of
from pipeline.statuses import has_failed
from pipeline.streams import Stream, stream_of


def stream(plan: Plan, settings: Settings, board: JobBoard | None = None) -> Iterator[Result]:
    """Yield a result per clip of the plan, in the plan's order.

    The next clip is compressed as soon as the answer stage has capacity, and the one after it is
    decoded meanwhile. A profile processes its first clip twice, as a warm-up. The stages report
    their progress to the board.

    Raises:
        WorkerError: If this process can no longer use its GPU.
    """
    board = board or JobBoard()
    board.plan(plan)
    clips = clips_in(plan.clips)
    stages = _Stages(plan, settings, board)
    try:
        with closing(stages):
            if not settings.profile:
                yield from stages(clips)
                return
            warm = False
            for row in clips:
                (done,) = stages([row])
                if not warm and not has_failed(done):
                    (done,), warm = stages([row]), True
                yield done
    except DeviceError as error:
        raise WorkerError(
            f"the GPU failed on clip {stages.last[1]} of {stages.last[0]}, or "
            f"on one that was answered beside it ({error}), and is lost for this process; continue "
            "with --resume, or set executor to ray, which starts a new process and gives a clip up "
            f"after {MAX_ATTEMPTS} attempts"
        ) from error


def _ahead(rows: Callable[[], Iterator[Clip]]) -> Generator[Clip]:
    """Iterate over rows, producing two in advance: the next clip, and its decoded form."""
    return iterate(rows, ahead=2)


class _Stages:
    """All stages for some clips; models are loaded when the first clip needs them."""

    def __init__(self, plan: Plan, settings: Settings, board: JobBoard) -> None:
        self.plan = plan
        self.settings = settings
        self.last = ("", "")
        self._board = board
        self._ready: dict[str, Stream] = {}
        self._coming: Generator[Clip] | None = None

    def __call__(self, rows: Iterable[Clip]) -> Iterator[Result]:
        """Run clips to their results, in their order."""
        stages = stages_of(self.plan)
        if not self.plan.answer:
            return map(filled, self._filled(rows))
        assert stages[-1].on_hits
        return self._answered(stages[-1], self._filled(rows))

    def close(self) -> None:
        """Stop decoding, and wait for the clip that is being decoded."""
        if self._coming is not None:
            self._coming.close()

    def _filled(self, rows: Iterable[Clip]) -> Iterator[Clip]:
        """Run clips through the cache-filling stages that take them."""
        decode, *others = (stage for stage in stages_of(self.plan) if not stage.on_hits)
        coming = self._coming = _ahead(lambda: self._decoded(decode, rows))
        for clip in coming:
            self.last = clip.name
            stages = [stage for stage in others if stage.takes(clip)]
            for stage in stages:
                self._started(stage)  # while the first clip is decoded
            row = next(coming)
            for stage in stages:
                (row,) = self._started(stage)([row])
            yield row

    def _decoded(self, decode: Stage, rows: Iterable[Clip]) -> Iterator[Clip]:
        """Yield every clip twice: as planned, and after decoding it if necessary."""
        for clip in rows:
            yield clip
            if decode.takes(clip):
                yield from self._started(decode)([clip])
            else:
                yield clip

    def _answered(self, stage: Stage, rows: Iterator[Clip]) -> Iterator[Result]:
        """Run clips through the last stage, which is started with the first clip."""
        first = next(rows, None)
        if first is not None:
            yield from self._started(stage)(chain([first], rows))

    def _started(self, stage: Stage) -> Stream:
        """Stream function of a started stage."""
        if stage.name not in self._ready:
            started = stream_of(self._start(stage))
            self._ready[stage.name] = Metered(started, stage.name, self._board)
        return self._ready[stage.name]

    def _start(self, stage: Stage) -> Callable[[Clip], Any]:
        """Start a stage.

        Raises:
            WorkerError: If its half of the model does not fit into the GPU's memory.
        """
        try:
            return stage.start(self.plan, self.settings)
        except RuntimeError as error:
            if type(error).__name__ != "OutOfMemoryError":  # torch's, which a decode job lacks
                raise
            reason = " ".join(str(error).split())[:200]
            half = HALVES.get(stage.name, stage.name)
            raise WorkerError(
                f"no GPU has room for the {half} ({reason}); set model.dtype to bfloat16, or "
                "executor to ray with pools that give each half a GPU, or model.device to cpu"
            ) from error
