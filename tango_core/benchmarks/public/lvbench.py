"""LVBench: 103 videos of more than an hour on average, 1,549 questions of six types.

Wang et al., "LVBench: An Extreme Long Video Understanding Benchmark", 2024,
https://arxiv.org/abs/2406.08035. Data: `zai-org/LVBench` on the Hugging Face hub, which holds no
videos, and `lmms-eval/LVBench` with them. Prompt and rules: lmms-eval, `lmms_eval/tasks/lvbench`.
VLMEvalKit has no LVBench: under its name the question is put in the same words, and there is no
harness's score.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols.harnesses import ranked_score
from tango_core.benchmarks.protocols.protocol import PromptTemplate, of_lmms_eval
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import BRACKETED

# Without a full stop at the end.
PROMPT = PromptTemplate(
    "{question}\n{options}\nAnswer the question with the option letter", option=BRACKETED
)


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's task, which is only whether the letter is right."""
    return {"lvbench_score": bool(ranked_score(reply, record.question))}


_META = "video_info.meta.jsonl"
_LICENCE = "CC-BY-NC-SA 4.0, research only"


class LVBenchBenchmark(annotated.AnnotatedBenchmark):
    """LVBench from the authors' `video_info.meta.jsonl` or the table that lmms-eval reads."""

    name = "lvbench"
    title = "LVBench"
    layout = f"{_META} or data/train-*.parquet, and videos/<key>.mp4"
    annotations = (
        *("data/train-*.parquet", "train-*.parquet", "*/train-*.parquet"),
        *(_META, f"data/{_META}", "lvbench.jsonl", "lvbench.json"),
    )
    folders = (".", "videos", "all_videos")
    video_columns = ("video_path", "key", "video", "video_id")
    id_column = "uid"
    splits: ClassVar = {"test": 1549, "train": 1549}
    protocols: ClassVar = of_lmms_eval(PROMPT, ranked_score)
    several_valued: ClassVar = ("type",)
    lmms_eval_samples = annotated.LmmsEvalSamples("lvbench", sample_metrics)
    releases = (
        Release(
            repository="lmms-eval/LVBench",
            licence=_LICENCE,
            annotations=("*.parquet",),
            videos=("*.zip", "*.tar*", "*.mp4"),
        ),
        Release(
            repository="zai-org/LVBench",
            licence=_LICENCE,
            annotations=(_META,),
            notes=(
                "the videos are on YouTube, by the keys in the table; some are gone: put what you "
                "have into videos/<key>.mp4",
            ),
        ),
    )

    def _rows(self, path: Path) -> list[tables.Row]:
        return tables.of_videos(path, super()._rows(path), "key", "type")

    def _file(self, row: tables.Row) -> str:
        return PurePosixPath(super()._file(row)).name

    def _groups(self, row: tables.Row) -> dict[str, str]:
        types = row.get("question_type")
        if not tables.is_missing(types) and not isinstance(types, str):
            types = ", ".join(tables.list_of(row, "question_type"))
        found = {"type": types, "category": row.get("type")}
        return {name: str(own) for name, own in found.items() if not tables.is_missing(own)}
