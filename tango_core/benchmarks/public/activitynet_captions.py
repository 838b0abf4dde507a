"""ActivityNet Captions: temporal grounding of sentences in videos of two minutes on average.

Krishna et al., "Dense-Captioning Events in Videos", ICCV 2017, https://arxiv.org/abs/1705.00754.
The second annotation of the validation videos (`val_2.json`, 17,031 sentences) is the usual test
set, the first one (`val_1.json`, 17,505) the usual validation set. lmms-eval 75571cfe has no task
with them, but one with the sentences and times of TimeLens about the same videos (4,500, split
`timelens`), `lmms_eval/tasks/timelens`: its words and its rules are `lmms_eval` here, whatever the
split. `lmms_eval_charades` has the words of its Charades-STA task, without a harness's score.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols.protocol import of_lmms_eval, unscored
from tango_core.benchmarks.public import charades_sta as charades
from tango_core.benchmarks.releases import Release
from tango_core.errors import InputError

_METRICS = tuple(f"timelens_{name}" for name in ("IOU@3", "IOU@5", "IOU@7", "mIOU"))


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The reply under video, sentence and times, once per metric that lmms-eval computes later.

    Raises:
        ValueError: For a sentence that lmms-eval's task does not have.
    """
    row = record.row
    if "span" not in row:
        raise InputError("lmms-eval asks the questions of benchmark.split timelens alone")
    key = f"{row['video_path']}>>>{row['query']}>>>{row['span']}"
    return {name: {key: reply} for name in _METRICS}


_PROTOCOLS = of_lmms_eval(charades.TIMELENS, charades.score_timelens, **charades.SPANS)


class ActivityNetBenchmark(charades.CharadesSTABenchmark):
    """ActivityNet Captions as its authors' JSON files, or the table of TimeLens."""

    name = "activitynet_captions"
    title = "ActivityNet Captions"
    layout = "val_2.json, val_1.json or data/activitynet-*.parquet, and videos/v_<id>.mp4"
    annotations = ("val_2.json", "captions/val_2.json")
    split_annotations: ClassVar = {
        "val_1": ("val_1.json", "captions/val_1.json"),
        "timelens": ("data/activitynet-*.parquet", "activitynet-*.parquet"),
    }
    folders = (".", "videos", "all_test", "activitynet", "Activity_Videos")
    length_column = "duration"
    splits: ClassVar = {"test": 17031, "val_1": 17505, "timelens": 4500}
    protocols: ClassVar = {
        **_PROTOCOLS,
        **unscored("lmms_eval_charades", replace(_PROTOCOLS["lmms_eval"], render=charades.PROMPT)),
    }
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "timelens_activitynet",
        sample_metrics,
        target=lambda record: str(record.row.get("span")),
        key_in=annotated.first_key_of(*_METRICS),
    )
    releases = (
        Release(
            repository="kcz358/timelens",
            licence="research only, by the terms of ActivityNet",
            annotations=("*activitynet*.parquet",),
            videos=("*.zip", "*.tar*", "*.mp4"),
            notes=(
                "it holds the questions of the split timelens; val_1.json and val_2.json are on "
                "the page of ActivityNet Captions: put them beside it",
            ),
        ),
    )

    def _sentences(self, path: Path) -> list[tables.Row]:
        if path.suffix != ".json":
            return [
                {**row, "video": row.get("video_path"), "caption": row.get("query")}
                | {"timestamp": _first_span(row)}
                for row in tables.read_rows(path)
            ]
        return tables.nested_rows(
            path,
            lambda content: [
                {
                    "video": video,
                    "caption": sentence.strip(),
                    "timestamp": times,
                    "duration": own["duration"],
                }
                for video, own in content.items()
                for sentence, times in zip(own["sentences"], own["timestamps"], strict=True)
            ],
            "{video: {duration, sentences, timestamps}}",
        )


def _first_span(row: tables.Row) -> object:
    """The first [start, end] in a row of TimeLens, or what it holds instead."""
    try:
        return json.loads(str(row.get("span")))[0]
    except (ValueError, TypeError, IndexError, KeyError):
        return row.get("span")
