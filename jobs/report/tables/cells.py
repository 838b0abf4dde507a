"""The table of cells in four forms: terminal, Markdown, CSV, LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

MAX_WIDTH = 100
DASH = "-"

_CSV_FIELDS = (
    "run_id",
    "benchmark",
    "protocol",
    "cell",
    "method",
    "num_questions",
    "num_answered",
    "num_unparsed",
    "num_failed",
    "retention_requested",
    "retention_actual",
    "retention_with_newlines",
    "equivalent_retention",
    "accuracy",
    "accuracy_answered",
    "accuracy_macro",
    "harness_accuracy",
    "prefill_tflops",
)


def render_table(cells: Sequence[dict[str, Any]]) -> str:
    """Plain text for a terminal: aligned, at most 100 columns wide, no trailing newline.

    Args:
        cells: The flat summaries under `cells` of a `summary.json`.
    """
    header, rows = _table(cells, [str(cell["cell"]) for cell in cells], brief=True)
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    widths[0] -= max(0, sum(widths) + 2 * (len(widths) - 1) - MAX_WIDTH)
    rendered = [_aligned(header, widths), "  ".join("─" * width for width in widths)]
    parts = shared_parts(cells)
    for index, row in enumerate(rows):
        if parts[index] and (index == 0 or parts[index] != parts[index - 1]):
            rendered.append(parts[index])
        rendered.append(_aligned(row, widths))
    return "\n".join(rendered)


def markdown_table(cells: Sequence[dict[str, Any]]) -> str:
    """A GitHub-flavoured Markdown table."""
    return markdown_lines(*_table(cells, labels(cells)))


def latex_table(cells: Sequence[dict[str, Any]]) -> str:
    """A LaTeX `tabular` with the rules of the booktabs package."""
    header, rows = _table(cells, labels(cells))
    lines = [f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", "\\toprule", _latex(header)]
    lines += ["\\midrule", *(_latex(row) for row in rows), "\\bottomrule", "\\end{tabular}"]
    return "\n".join(lines)


def csv_table(cells: Sequence[dict[str, Any]]) -> str:
    """All figures of the cells, unrounded, one line per cell; empty where there is none."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = baseline_names(cells)
    writer.writerow(
        [
            *_CSV_FIELDS,
            "accuracy_low",
            "accuracy_high",
            "versus_full",
            "versus_full_low",
            "versus_full_high",
            "versus_full_p",
            *(f"versus_{name}{part}" for name in names for part in ("", "_low", "_high", "_p")),
            "prefill_ms_p50",
            "cache_hits",
            "cache_misses",
        ]
    )
    for cell in cells:
        others = [cell["versus_full"], *(cell["versus"][name] for name in names)]
        writer.writerow(
            [
                *(cell.get(field) for field in _CSV_FIELDS),
                *(cell["accuracy_ci95"] or (None, None)),
                *(figure for versus in others for figure in _figures(versus or {})),
                prefill_p50(cell),
                cell["cache"]["hits"],
                cell["cache"]["misses"],
            ]
        )
    return stream.getvalue()


def prefill_p50(cell: dict[str, Any]) -> float | None:
    """Median prefill of a cell in ms, or `None` if nothing was prefilled."""
    value: float | None = cell["latency_ms"].get("prefill", {}).get("p50")
    return value


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage without its sign; a dash for `None`."""
    return DASH if share is None else f"{100 * share:.{digits}f}"


def points(share: float | None) -> str:
    """A difference of shares in percentage points, with its sign (and a true minus)."""
    return DASH if share is None else f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def milliseconds(value: float | None) -> str:
    """A duration with about three digits."""
    if value is None:
        return DASH
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def p_value(value: float | None) -> str:
    """A p value as papers print it."""
    if value is None:
        return DASH
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def change(versus: dict[str, Any] | None) -> str:
    """A paired difference in points with its interval; a dash if there is none."""
    low, high = (versus or {}).get("difference_ci95", (None, None))
    difference = points((versus or {}).get("difference"))
    return difference if low is None else f"{difference} ({points(low)} to {points(high)})"


def series_name(cell: Mapping[str, Any]) -> str:
    """Name of a cell without its retention: the method with the options that the recipe names."""
    return " ".join(word for word in str(cell["cell"]).split(" ") if not word.startswith("r="))


def baseline_names(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the cells were compared with apart from `full`, in order."""
    return list(dict.fromkeys(name for cell in cells for name in cell.get("versus", {})))


def markdown_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(
        "| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines
    )


def labels(cells: Sequence[dict[str, Any]]) -> list[str]:
    """One name per cell; run and benchmark are named only where they differ."""
    parts = shared_parts(cells)
    return [
        f"{part}: {cell['cell']}" if part else str(cell["cell"])
        for part, cell in zip(parts, cells, strict=True)
    ]


def shared_parts(cells: Sequence[dict[str, Any]]) -> list[str]:
    """Per cell its run and its benchmark, each only if the cells differ in it."""
    fields = [
        field for field in ("run_id", "benchmark") if len({cell.get(field) for cell in cells}) > 1
    ]
    return [" / ".join(str(cell[field]) for field in fields) for cell in cells]


def tables_of_cells(
    cells: Sequence[dict[str, Any]],
) -> list[tuple[str, list[dict[str, Any]]]]:
    """Title and cells of each table: one per run and benchmark; runs of few cells share one."""
    titles = shared_parts(cells)
    if len(set(titles)) > len(cells) / 2:
        many = len({cell["benchmark"] for cell in cells}) > 1
        titles = [str(cell["benchmark"]) if many else "" for cell in cells]
    tables: dict[str, list[dict[str, Any]]] = {}
    for title, cell in zip(titles, cells, strict=True):
        tables.setdefault(title, []).append(cell)
    return list(tables.items())


def _table(
    cells: Sequence[dict[str, Any]], names: Sequence[str], *, brief: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Header and rows, formatted; what a harness would print only where there is a harness.

    A brief table has differences to `full` alone, without interval and p.
    """
    with_harness = any(cell.get("harness_accuracy") is not None for cell in cells)
    baselines = [] if brief else baseline_names(cells)
    header = ["cell", "accuracy %", *(["harness %"] if with_harness else []), "95 % interval"]
    for key in ("full", *baselines):
        header += [f"vs {key}"] if brief else [f"vs {key}", "p"]
    header += ["tokens %"] if brief else ["asked %", "kept %", "with newlines %", "equivalent %"]
    header += ["prefill ms", "cache hits", "failed"]
    rows = []
    for name, cell in zip(names, cells, strict=True):
        low, high = cell["accuracy_ci95"] or (None, None)
        differences: list[str] = []
        for versus in (cell["versus_full"], *(cell["versus"][key] for key in baselines)):
            p = p_value((versus or {}).get("p_value"))
            difference = points((versus or {}).get("difference"))
            differences += [difference] if brief else [change(versus), p]
        clips = cell["cache"]["hits"] + cell["cache"]["misses"]
        rows.append(
            [
                name,
                percent(cell["accuracy"]),
                *([percent(cell.get("harness_accuracy"))] if with_harness else []),
                DASH if low is None else f"{percent(low)} to {percent(high)}",
                *differences,
                *([] if brief else _budget(cell)),
                percent(cell["equivalent_retention"]),
                milliseconds(prefill_p50(cell)),
                f"{cell['cache']['hits']}/{clips}",
                str(cell["num_failed"]),
            ]
        )
    return header, rows


def _budget(cell: Mapping[str, Any]) -> list[str]:
    """Share of the clip's tokens asked for, kept, and kept with the model's newline tokens."""
    asked = f"{100 * cell['retention_requested']:g}"
    return [asked, percent(cell["retention_actual"]), percent(cell.get("retention_with_newlines"))]


def _figures(versus: Mapping[str, Any]) -> list[float | None]:
    """Difference, both ends of its interval, and p."""
    interval = versus.get("difference_ci95", (None, None))
    return [versus.get("difference"), *interval, versus.get("p_value")]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """One line of the terminal's table: the name to the left, numbers to the right."""
    name = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
    numbers = [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([name.ljust(widths[0]), *numbers])


def latex_escaped(text: str) -> str:
    """Text as LaTeX prints it, whatever characters it holds."""
    escapes = {
        "\\": r"\textbackslash{}",
        "\N{MINUS SIGN}": "$-$",
        "<": "$<$",
        "~": r"\textasciitilde{}",
    }
    escapes |= {char: f"\\{char}" for char in "%&_#${}"}
    return "".join(escapes.get(char, char) for char in text)


def _latex(row: Sequence[str]) -> str:
    """One line of a tabular."""
    return " & ".join(map(latex_escaped, row)) + r" \\"
