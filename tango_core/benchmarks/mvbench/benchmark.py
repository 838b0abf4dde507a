"""MVBench: 20 temporal tasks of 200 questions each, on clips from eleven other datasets.

Li et al., "MVBench: A Comprehensive Multi-modal Video Understanding Benchmark", CVPR 2024,
https://arxiv.org/abs/2311.17005. Data: `OpenGVLab/MVBench` on the Hugging Face hub, in two layouts:
branch `main` holds the source videos, and five tasks ask about a part of one; branch `video` holds
clips that are cut already.

Bounds are applied when a clip is decoded. Nothing is cut to a file, so two questions about two
parts of one file cannot get each other's clip, as they can where the cut file is named after its
source alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark
from tango_core.benchmarks.annotations.records import (
    Record,
    Table,
    clip_id,
    option_notes,
)
from tango_core.benchmarks.annotations.tables import (
    Row,
    answer_text_of,
    is_missing,
    list_of,
    number_of,
    read_json,
    read_rows,
    text_of,
)
from tango_core.benchmarks.facts import PaperColumn
from tango_core.benchmarks.mvbench import lmms_eval, vlmevalkit
from tango_core.benchmarks.mvbench.tasks import (
    ALL_TASKS,
    TASK_OF,
    WITHHELD,
    WITHHELD_TASK,
    Task,
)
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.types import Question

# VLMEvalKit's two tables, the branch `video`, the branch `main` (and lmms-eval's link to either).
_PREFIXES = ("", "mvbench_video/")
_CUT_FILES = ("MVBench_MP4.tsv", "test.json")
_ONE_FILE = ("MVBench.tsv", *_CUT_FILES)
_BOUNDED = tuple(task for task in ALL_TASKS if task.bounded)


class MVBenchBenchmark(AnnotatedBenchmark):
    """MVBench in either public layout, as downloaded or as a harness leaves it.

    The 200 clips of Fine-grained Pose are withheld by their owner; without them these questions
    stay, as failed rows (set `max_failures` accordingly).
    """

    name = "mvbench"
    title = "MVBench"
    layout = (
        "json/action_sequence.json and 19 others with video/<folders> (branch main), "
        "or test.json with the folders of branch video"
    )
    splits: ClassVar = {"test": 4000}
    protocols: ClassVar = {**vlmevalkit.PROTOCOLS, **lmms_eval.PROTOCOLS}
    paper_column = PaperColumn(2)
    vlmevalkit_table = vlmevalkit.TABLE
    lmms_eval_samples = lmms_eval.SAMPLES
    # Branch `main` has the source videos, branch `video` the clips that are cut already.
    releases = (
        Release(
            "OpenGVLab/MVBench",
            (
                ReleasePart("annotations", ("json/*.json", "test.json"), any_of=True),
                ReleasePart("videos", ("*.zip",)),
            ),
            "MIT for the annotations; the videos keep the licences of their eleven data sets",
            gated="who accepts its terms on the hub",
            notes=(f"200 clips of {WITHHELD_TASK} are not in it: {WITHHELD}",),
        ),
    )

    def _tables(self) -> list[Table]:
        self._first_row: dict[str, int] = {}
        jsons = [f"{prefix}json/{ALL_TASKS[0].stem}.json" for prefix in _PREFIXES]
        files = [f"{prefix}{name}" for prefix in _PREFIXES for name in _ONE_FILE]
        path = self._find_annotations([*jsons, *files])
        if path.suffix == ".tsv":
            rows = read_rows(path)
            for at, row in enumerate(rows):
                self._first_row.setdefault(_stem(row.get("task_type")), at)
            return [Table(path, rows)]
        if path.name == "test.json":
            return _one_json(path)
        missing = [t.stem for t in ALL_TASKS if not (path.parent / f"{t.stem}.json").is_file()]
        if missing:
            raise FileNotFoundError(
                f"MVBench annotations under {path.parent} are incomplete, missing "
                f"{', '.join(f'{stem}.json' for stem in missing)}; expected layout: {self.layout}"
            )
        return [
            Table(file, read_rows(file), task.name)
            for task in ALL_TASKS
            for file in [path.parent / f"{task.stem}.json"]
        ]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        task_name = table.task or text_of(row, "task_type")
        if task_name not in TASK_OF:
            raise ValueError(f"unknown task {task_name!r}")
        task = TASK_OF[task_name]
        file = text_of(row, "video")
        choices = list_of(row, "candidates")
        written = answer_text_of(row)
        same = [i for i, choice in enumerate(choices) if choice == written]
        folder = table.folder or str(row.get("prefix") or "")
        path, is_cut = self._locate(task, file, folder, table.path.name in _CUT_FILES)
        clip = None if is_cut or not task.bounded else _bounds(row)
        inner = Path(file).parent.as_posix().removeprefix(".")
        name = "/".join(filter(None, [task.cut if is_cut else task.source, inner, Path(path).stem]))
        notes = option_notes(choices, same[-1] if same else None, written)
        if clip is not None and clip[0] == clip[1]:
            notes.append(f"the clip starts and ends at {clip[0]:g} s: one frame")
        return Record(
            index=index,
            row=row,
            video_id=clip_id(name, clip),
            path=path,
            clip=clip,
            question=Question(
                id=f"{task.stem}-{number - self._first_row.get(task.stem, 0)}",
                text=text_of(row, "question"),
                choices=choices,
                answer=same[-1] if same else None,
                groups={"task": task.name},
            ),
            notes=tuple(notes),
        )

    def missing_reason(self, record: Record) -> str | None:
        """Explain the clips that the owner of NTU RGB+D withholds."""
        return WITHHELD if record.question.groups["task"] == WITHHELD_TASK else None

    def _locate(self, task: Task, file: str, folder: str, cut: bool) -> tuple[str, bool]:
        """Return where a clip's video is, or would be, and whether it is cut already.

        Args:
            task: Its task.
            file: Its name in the row.
            folder: Its folder as the annotations name it; "" if they do not.
            cut: Whether these annotations belong to the branch `video`.
        """
        names = [file, f"{file}.mp4", str(Path(file).with_suffix(".mp4"))]
        if folder and (found := self.media.find([folder], names if cut else [file])):
            return found, cut
        bases = [
            f"{prefix}{sub}" for prefix in _PREFIXES for sub in ("", "video/", "video/data0613/")
        ]
        if task.cut != task.source:
            found = self.media.find([f"{base}{task.cut}" for base in bases], names)
            if found:
                return found, True
        found = self.media.find([f"{base}{task.source}" for base in bases], [file])
        if found:
            return found, False
        if cut or any(self.media.holds(f"{base}{t.cut}") for base in bases for t in _BOUNDED):
            return self.media.at(folder or task.cut, file), True
        return self.media.at(folder or f"video/{task.source}", file), False


def _stem(task: Any) -> str:
    """Return the stem of a task that is written either way."""
    return TASK_OF[task].stem if task in TASK_OF else ""


def _bounds(row: Row) -> tuple[float, float]:
    """Return a clip's bounds in seconds."""
    if is_missing(row.get("start")) or is_missing(row.get("end")):
        raise ValueError("no start and end, which this task needs")
    start, end = number_of(row, "start"), number_of(row, "end")
    if not 0 <= start <= end:
        raise ValueError(f"bounds must satisfy 0 <= start <= end, got {start:g} and {end:g}")
    return start, end


def _one_json(path: Path) -> list[Table]:
    """Read the branch `video`'s file: `{"root": {task: folder}, "meta": {task: [rows]}}`."""
    content: Any = read_json(path)
    meta = content.get("meta") if isinstance(content, dict) else None
    folders = (content.get("root") or {}) if isinstance(content, dict) else None
    if not isinstance(meta, dict) or not isinstance(folders, dict):
        raise ValueError(f"{path}: must be an object with 'root' and 'meta', by task")
    for task, rows in meta.items():
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(
                f"{path}: 'meta' of {task} must be a list of objects, one per question"
            )
    unknown = sorted(set(meta) - set(TASK_OF))
    if unknown:
        raise ValueError(f"{path}: unknown tasks {', '.join(unknown)}")
    return [
        Table(path, rows, TASK_OF[task].name, str(folders.get(task) or ""))
        for task, rows in meta.items()
    ]
