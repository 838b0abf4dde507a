"""Names of cells where several stand together, and which cells share a table."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.results.cell_summary import CellSummary


def labels(cells: Sequence[CellSummary]) -> list[str]:
    """One name per cell; run and benchmark are named only where they differ."""
    parts = shared_parts(cells)
    return [
        f"{part}: {cell.name}" if part else cell.name
        for part, cell in zip(parts, cells, strict=True)
    ]


def shared_parts(cells: Sequence[CellSummary]) -> list[str]:
    """Per cell its run and its benchmark, each only if the cells differ in it."""
    with_run = len({cell.run_id for cell in cells}) > 1
    with_benchmark = len({cell.benchmark for cell in cells}) > 1
    return [
        " / ".join([cell.run_id] * with_run + [cell.benchmark] * with_benchmark) for cell in cells
    ]


def tables_of_cells(cells: Sequence[CellSummary]) -> list[tuple[str, list[CellSummary]]]:
    """Title and cells of each table: one per run and benchmark; runs of few cells share one."""
    titles = shared_parts(cells)
    if len(set(titles)) > len(cells) / 2:
        many = len({cell.benchmark for cell in cells}) > 1
        titles = [cell.benchmark if many else "" for cell in cells]
    tables: dict[str, list[CellSummary]] = {}
    for title, cell in zip(titles, cells, strict=True):
        tables.setdefault(title, []).append(cell)
    return list(tables.items())


def baseline_names(cells: Sequence[CellSummary]) -> list[str]:
    """Baselines that the cells were compared with apart from `full`, in order."""
    return list(dict.fromkeys(name for cell in cells for name in cell.versus))
