"""Labels of cells in tables with several models or benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.results.cell_summary import CellSummary, have_one_headline, metric_title


def labels(cells: Sequence[CellSummary]) -> list[str]:
    """One name per cell; run and benchmark are named only where they differ."""
    parts = shared_parts(cells)
    return [
        f"{part}: {cell.name}" if part else cell.name
        for part, cell in zip(parts, cells, strict=True)
    ]


def shared_parts(cells: Sequence[CellSummary]) -> list[str]:
    """Per cell its run and its benchmark, each only if the cells differ in it.

    The benchmark stands with its headline where the headlines differ: `charades_sta (mIoU)`.
    """
    with_run = len({cell.run_id for cell in cells}) > 1
    with_benchmark = len({cell.benchmark for cell in cells}) > 1
    return [
        " / ".join([cell.run_id] * with_run + [name] * with_benchmark)
        for cell, name in zip(cells, benchmark_labels(cells), strict=True)
    ]


def benchmark_labels(cells: Sequence[CellSummary]) -> list[str]:
    """Per cell its benchmark, with the headline where the cells differ in it."""
    if have_one_headline(cells):
        return [cell.benchmark for cell in cells]
    return [f"{cell.benchmark} ({metric_title(cell)})" for cell in cells]


def tables_of_cells(cells: Sequence[CellSummary]) -> list[tuple[str, list[CellSummary]]]:
    """Title and cells of each table: one per run and benchmark; runs of few cells share one."""
    titles = shared_parts(cells)
    if len(set(titles)) > len(cells) / 2:
        many = len({cell.benchmark for cell in cells}) > 1
        titles = benchmark_labels(cells) if many else [""] * len(cells)
    tables: dict[str, list[CellSummary]] = {}
    for title, cell in zip(titles, cells, strict=True):
        tables.setdefault(title, []).append(cell)
    return list(tables.items())


def baseline_names(cells: Sequence[CellSummary]) -> list[str]:
    """Baselines that the cells were compared with apart from `full`, in order."""
    return list(dict.fromkeys(name for cell in cells for name in cell.versus))
