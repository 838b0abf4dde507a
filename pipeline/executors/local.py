"""Run the stages in one process, without Ray."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from typing import cast

from pipeline.clips import Clip, Stage, stages_of
from pipeline.errors import DeviceError, WorkerError
from pipeline.metrics import JobBoard, Metered, stream_of
from pipeline.plan import Plan
from pipeline.resources.pools import HALVES
from pipeline.rows import Result, clips_in, filled
from pipeline.runtime.background import done_ahead
from pipeline.settings import Settings


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
        if not settings.profile:
            yield from stages.run(clips)
        is_warm = False
        for clip in clips if settings.profile else ():
            (done,) = stages.run([clip])
            if not is_warm and not done.has_failed:
                is_warm = True
                (done,) = stages.run([clip])
            yield done
    except DeviceError as error:
        raise WorkerError(
            f"the GPU failed on clip {stages.last[1]} of {stages.last[0]}, or on one that was "
            f"answered beside it ({error}); this process cannot use it any more; continue with "
            "--resume, or set executor to ray, which restarts workers and marks a clip as failed "
            "after several attempts"
        ) from error


class _Stages:
    """The stages of a plan; each is started, and loads its model, when the first clip needs it."""

    def __init__(self, plan: Plan, settings: Settings, board: JobBoard) -> None:
        self.plan, self.settings, self.board = plan, settings, board
        self.last = ("", "")
        self._started: dict[str, Metered] = {}

    def run(self, clips: Iterable[Clip]) -> Iterator[Result]:
        """Run clips through all stages."""
        with closing(self._fill(clips)) as ready:
            if not self.plan.answer:
                yield from map(filled, ready)
            elif first := next(ready, None):  # loads the language model with the first clip
                answer = self._start(stages_of(self.plan)[-1])
                yield from cast("Iterator[Result]", answer(chain([first], ready)))

    def _fill(self, clips: Iterable[Clip]) -> Generator[Clip]:
        """Yield clips after the cache-filling stages; the next clip is decoded meanwhile."""
        decode, *others = (stage for stage in stages_of(self.plan) if not stage.on_hits)
        decoded = partial(self._through, decode)
        with closing(done_ahead(clips, decoded, 1)) as coming:
            for clip, decoding in coming:
                self.last = clip.name
                for stage in others:
                    if stage.takes(clip):
                        self._start(stage)  # while the first clip is decoded
                done = decoding.result()
                for stage in others:
                    done = self._through(stage, done)
                yield done

    def _through(self, stage: Stage, clip: Clip) -> Clip:
        """Run one clip through a stage; return it unchanged if the stage does not take it."""
        if not stage.takes(clip):
            return clip
        (done,) = self._start(stage)([clip])
        return cast("Clip", done)

    def _start(self, stage: Stage) -> Metered:
        """Start a stage unless it is started.

        Raises:
            WorkerError: If the vision encoder or language model does not fit into GPU memory.
        """
        if stage.name not in self._started:
            try:
                run = stream_of(stage.start(self.plan, self.settings))
                self._started[stage.name] = Metered(run, stage.name, self.board)
            except RuntimeError as error:
                if type(error).__name__ != "OutOfMemoryError":  # by name: torch may not be loaded
                    raise
                reason = " ".join(str(error).split())[:200]
                raise WorkerError(
                    f"no GPU has room for the {HALVES.get(stage.name, stage.name)} ({reason}); set "
                    "model.dtype to bfloat16, or executor to ray with one GPU for the vision "
                    "encoder and one for the language model (pools), or model.device to cpu"
                ) from error
        return self._started[stage.name]
