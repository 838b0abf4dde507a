"""Options, the line without a GPU, and results that are written as they come."""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

NO_GPU = 2
Rows = list[dict[str, Any]]


@dataclass
class Run:
    """One run of a command.

    Attributes:
        device: Where the work is.
        small: Whether sizes are shrunk, to try the programs out.
        out: Folder of the results.
        started: When it began.
        parts: Title -> rows, in order.
    """

    device: torch.device
    small: bool
    out: Path
    started: float = field(default_factory=time.perf_counter)
    parts: dict[str, Rows] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.started


def options(description: str, argv: Sequence[str] | None = None) -> Run:
    """Read the options; without the GPU that they ask for the program ends here."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="shrunken sizes")
    parser.add_argument("--out", type=Path, default=Path("tests/gpu/results"))
    given = parser.parse_args(argv)
    if given.device == "cuda" and not torch.cuda.is_available():
        print(
            f"no GPU: torch {torch.__version__} sees no CUDA device here, and nothing was run; run "
            "it on a machine with one, or try the programs out with --device cpu --small",
            file=sys.stderr,
        )
        sys.exit(NO_GPU)
    given.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(given.device)
    return Run(device, given.small, given.out)


def about(device: torch.device) -> dict[str, Any]:
    """What the numbers depend on."""
    found: dict[str, Any] = {
        "device": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "float32 products": torch.get_float32_matmul_precision(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
        found["memory_gib"] = round(
            torch.cuda.get_device_properties(device).total_memory / 2**30, 1
        )
    return found


def do_parts(
    run: Run,
    name: str,
    parts: Sequence[tuple[str, Callable[[Run], Rows]]],
    begin_until_s: float = float("inf"),
) -> None:
    """Do the parts in order, print each, and write all that there is after each of them.

    Args:
        run: Receives the rows.
        name: Of the files.
        parts: Titles, and functions that return their rows.
        begin_until_s: Parts that would begin later fail instead.
    """
    for title, part in parts:
        if run.elapsed_s > begin_until_s:
            run.parts[title] = [{"ok": False, "error": f"not run: {run.elapsed_s:.0f} s are over"}]
            write(run, name)
            continue
        print(f"\n## {title} (after {run.elapsed_s:.0f} s)", flush=True)
        begun = time.perf_counter()
        run.parts[title] = _rows_of(part, run)
        took = time.perf_counter() - begun
        print(f"\n{table(run.parts[title])}\n\n{title} took {took:.0f} s", flush=True)
        write(run, name)


def _rows_of(part: Callable[[Run], Rows], run: Run) -> Rows:
    """The rows of a part; one that breaks off leaves the others their time on the device."""
    try:
        return part(run)
    except Exception as error:
        traceback.print_exc()
        rows = [{"ok": False, "error": _reason(error)}]
    gc.collect()  # outside of `except`: the error holds what the part had
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    return rows


def rows_or_reason(facts: dict[str, Any], work: Callable[[], Rows]) -> Rows:
    """The rows that the work gives, or one of the facts and why it failed."""
    try:
        return work()
    except Exception as error:
        return [{**facts, "ok": False, "error": _reason(error)}]


def tried(facts: dict[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row: some facts and what the work gives, or why it failed."""
    return rows_or_reason(facts, lambda: [{**facts, **work()}])[0]


def failures(run: Run) -> list[str]:
    """Rows that are not good, in words."""
    return [
        f"{title}: {row}"
        for title, rows in run.parts.items()
        for row in rows
        if not row.get("ok", True)
    ]


def _reason(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def write(run: Run, name: str) -> None:
    """All parts so far, as JSON and as Markdown: `<name>_<device>[_small].json`."""
    file = run.out / f"{name}_{run.device.type}{'_small' if run.small else ''}.json"
    facts = {**about(run.device), "small": run.small, "seconds": round(run.elapsed_s, 1)}
    content = {"about": facts, "parts": run.parts}
    file.write_text(json.dumps(content, indent=1) + "\n")
    lines = [", ".join(f"{key}: {value}" for key, value in facts.items())]
    for title, rows in run.parts.items():
        lines += ["", f"## {title}", "", table(rows)]
    file.with_suffix(".md").write_text("\n".join(lines) + "\n")


def table(rows: Rows) -> str:
    """Rows as Markdown; columns in the order in which they first appear."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for row in rows:
        lines.append(f"| {' | '.join(_shown(row.get(name)) for name in names)} |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def gib(run: Run) -> float | None:
    """Largest memory on the device since `reset_peak`; nothing is known of a CPU."""
    if run.device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(run.device) / 2**30


def reset_peak(run: Run) -> None:
    """Forget earlier peaks."""
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)


def equal_replies(expected: Iterable[str], found: Iterable[str], dtype: str) -> dict[str, Any]:
    """How many replies are those of the CPU in float32; in half precision they are only counted.

    Of eight replies in float32 one may be another: with random weights two words are sometimes as
    good as equally likely, and the last bits decide. What is computed wrongly changes all of them.
    """
    pairs = list(zip(expected, found, strict=True))
    other = sum(one != two for one, two in pairs)
    return {
        "dtype": dtype,
        "replies": len(pairs),
        "other than float32 on the CPU": other,
        "ok": dtype != "float32" or other <= len(pairs) // 8,
    }
