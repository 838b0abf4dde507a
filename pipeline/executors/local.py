"""One process, one clip at a time: the stages without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.metrics import JobBoard, Metered
from pipeline.plan import Plan
from pipeline.rows import Row, result
from pipeline.settings import Settings
from pipeline.stages.declarations import has_failed, stages_of


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
        """Run one clip to its `rows.RESULT`."""
        taken_by = [stage for stage in stages_of(self.plan) if stage.takes(row)]
        for stage in taken_by:
            if stage.name not in self._started:
                started = stage.start(self.plan, self.settings)
                self._started[stage.name] = Metered(started, stage.name, self._board)
            # A hit has not been through the stages that add some of these columns.
            row = self._started[stage.name]({**dict.fromkeys(stage.input.names), **row})
        return row if self.plan.answer else result(row, [])
