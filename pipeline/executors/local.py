"""One process, one clip at a time: the stages without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.devices import HALVES
from pipeline.errors import DeviceError, WorkerError
from pipeline.executors.attempts import MAX_ATTEMPTS
from pipeline.metrics import JobBoard, Metered
from pipeline.plan import Plan
from pipeline.rows import Row
from pipeline.settings import Settings
from pipeline.stages.declarations import Stage, filled, has_failed, stages_of


def stream(plan: Plan, settings: Settings, board: JobBoard | None = None) -> Iterator[Row]:
    """Yield a `rows.RESULT` per clip of the plan, in the plan's order.

    A profile starts with a clip that is done twice: its first time includes what only the first
    clip has to wait for. The board shows what the stages have done.
    """
    board = board or JobBoard()
    board.plan(plan)
    stages = _Stages(plan, settings, board)
    warm = not settings.profile
    for batch in plan.clips.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            done = stages(row)
            if not warm and not has_failed(done):
                done, warm = stages(row), True
            yield done


class _Stages:
    """All stages for one clip; models are loaded when the first clip needs them."""

    def __init__(self, plan: Plan, settings: Settings, board: JobBoard) -> None:
        self.plan = plan
        self.settings = settings
        self._board = board
        self._started: dict[str, Callable[[Row], Row]] = {}

    def __call__(self, row: Row) -> Row:
        """Run one clip to its `rows.RESULT`.

        Raises:
            WorkerError: If this process can use its GPU no more.
        """
        is_hit = not row["missing"]
        for stage in stages_of(self.plan):
            if is_hit and not stage.on_hits:
                continue
            if stage.name not in self._started:
                started = self._start(stage)
                self._started[stage.name] = Metered(started, stage.name, self._board)
            # A hit has not been through the stages that add some of these columns.
            try:
                row = self._started[stage.name]({**dict.fromkeys(stage.input.names), **row})
            except DeviceError as error:
                raise WorkerError(
                    f"the GPU failed on clip {row['video_id']} of {row['benchmark']} ({error}) and "
                    "is lost for this process; continue with --resume, or set executor to ray, "
                    f"which starts a new process and gives a clip up after {MAX_ATTEMPTS} attempts"
                ) from error
        return row if self.plan.answer else filled(row)

    def _start(self, stage: Stage) -> Callable[[Row], Row]:
        """Make a stage ready.

        Raises:
            WorkerError: If the GPU has no room for its half of the model.
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
