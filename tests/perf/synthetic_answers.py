"""Answers of a run of any size, as the pipeline would have written them, in sealed parts.

    python tests/perf/synthetic_answers.py FOLDER --clips N [--questions 3] [--cells 20]

Clips are named as in the manifest of `planning.py`, which has one question per clip.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.results.facts import CellFacts, JobFacts
from pipeline.rows import ANSWER
from pipeline.storage import Storage
from pipeline.storage.seal import write_sealed
from tango_core.models.base import LLMShape

ROWS_PER_PART = 5_000
_METHODS = ("full", "tango", "visionzip", "vidcom2", "fastvid", "holitom", "divprune")


def cells_of(number: int) -> list[CellFacts]:
    """`full` and as many methods at different retentions as are wanted."""
    found = [CellFacts("full", "custom", "full", 1.0)]
    for index in range(number - 1):
        method, retention = _METHODS[1 + index % 6], (0.1, 0.2, 0.3, 0.5)[index // 6]
        found.append(CellFacts(f"{method} r={retention}", "custom", method, retention))
    return found


def facts_of(run_dir: Path, cells: Sequence[CellFacts]) -> JobFacts:
    """What the run would say about itself."""
    shape = LLMShape(28, 3584, 18944, 28, 4, 128, 152064)
    return JobFacts(run_dir.name, "sweep", "tiny", tuple(cells), llm=shape, num_frames=8)


def write_answers(
    run_dir: Path, names: Sequence[str], cells: Sequence[str], questions: Sequence[Sequence[str]]
) -> int:
    """Write the answers of a run; returns how many.

    Args:
        run_dir: The run; its directory `answers` receives the parts.
        names: Video ids of the clips.
        cells: Names of the cells.
        questions: Ids of the questions of each clip.
    """
    folder, total = Storage.at(run_dir).child("answers"), 0
    for number, (first, last) in enumerate(_slices(questions, len(cells))):
        table = _part(
            names[first:last], cells, questions[first:last], np.random.default_rng(number)
        )
        write_sealed(table, folder, f"part-{number:05d}-{number:012x}.parquet", run_dir.name)
        total += len(table)
    return total


def _slices(questions: Sequence[Sequence[str]], num_cells: int) -> Iterator[tuple[int, int]]:
    """First and last clip of every part: a driver writes after the clip that makes it full."""
    first = rows = 0
    for clip, own in enumerate(questions):
        rows += len(own) * num_cells
        if rows >= ROWS_PER_PART:
            yield first, clip + 1
            first, rows = clip + 1, 0
    if first < len(questions):
        yield first, len(questions)


def _part(
    names: Sequence[str],
    cells: Sequence[str],
    questions: Sequence[Sequence[str]],
    rng: np.random.Generator,
) -> pa.Table:
    """Rows by clip, cell and question, as the answer stage returns them."""
    keys = [
        (clip, cell, one)
        for clip, own in enumerate(questions)
        for cell in range(len(cells))
        for one in own
    ]
    clip, cell = (np.array([key[at] for key in keys]) for at in (0, 1))
    size = len(keys)
    ease = rng.beta(4, 2, len(names))[clip]
    answer = rng.integers(0, 4, size)
    right = rng.random(size) < ease - 0.01 * (cell % 5)
    choice = np.where(right, answer, (answer + 1) % 4)
    failed = (rng.random(len(names)) < 0.001)[clip]
    letters = np.array(list("ABCD"))
    kept = np.where(cell == 0, 1568, 157 * (1 + cell % 3))
    lengths = ("short", "medium", "long")
    groups = [
        json.dumps({"duration": lengths[k[0] % 3], "task": f"t{len(k[2]) % 4}"}) for k in keys
    ]
    frames = rng.integers(0, 2**63, len(names))[clip]
    # Clocks tick in nanoseconds, so nearly all digits of a time differ.
    times = {
        name: mean * rng.lognormal(0, 0.2, size)
        for name, mean in (("prefill_ms", 80.0), ("decode_ms", 24.0), ("cache_read_ms", 3.0))
    }
    per_clip = {
        name: (mean * rng.lognormal(0, 0.2, len(names)))[clip]
        for name, mean in (("decode_video_ms", 900.0), ("encode_ms", 335.0), ("compress_ms", 146.0))
    }
    columns = {
        "benchmark": ["custom"] * size,
        "video_id": [names[at] for at in clip],
        "question_id": [key[2] for key in keys],
        "cell": [cells[at] for at in cell],
        "method": [cells[at].split(" ")[0] for at in cell],
        "retention": np.where(cell == 0, 1.0, 0.1),
        "status": np.where(failed, "decode_failed", "ok"),
        "error": np.where(failed, "0 of 8 frames decoded; the file is probably truncated", None),
        "text": letters[choice],
        "choice": choice,
        "answer": answer,
        "correct": right,
        "answer_text": [f"option {at}" for at in answer],
        "choice_text": [f"option {at}" for at in choice],
        "harness_score": right.astype(float),
        "tokens_total": np.full(size, 1568),
        "tokens_kept": kept,
        "tokens_with_newlines": kept + 1,
        "prompt_tokens": kept + 90 + answer,
        "new_tokens": np.full(size, 2),
        **per_clip,
        **times,
        "ttft_ms": times["prefill_ms"] + 2,
        "cache": ["miss"] * size,
        "groups": groups,
        "prompt_digest": [f"{hash((key[0], key[2])) & 0xFFFFFFFFFFFFFFFF:016x}" for key in keys],
        "frames_digest": [f"{at:016x}" for at in frames],
    }
    arrays = [
        pa.array(columns[field.name], field.type, from_pandas=True)
        if field.name in columns
        else pa.nulls(size, field.type)
        for field in ANSWER
    ]
    return pa.Table.from_arrays(arrays, schema=ANSWER)


def main() -> None:
    """Write a run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=10_000)
    parser.add_argument("--questions", type=int, default=3)
    parser.add_argument("--cells", type=int, default=20)
    options = parser.parse_args()
    cells = cells_of(options.cells)
    names = [f"clip-{index:07d}" for index in range(options.clips)]
    ids = [[f"{name}-{at}" for at in range(options.questions)] for name in names]
    total = write_answers(options.folder, names, [cell.name for cell in cells], ids)
    facts_of(options.folder, cells).save(options.folder)
    print(f"{total:,} answers in {options.folder}")


if __name__ == "__main__":
    main()
