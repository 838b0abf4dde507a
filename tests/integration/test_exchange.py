"""Export of a real run to a harness's file, import, and a report of both."""

from __future__ import annotations

import json

import pandas as pd
import yaml
from numbered_videos import write_clip
from releases import VIDEOMME_ROWS, videomme_release
from summaries import read_answers

COMPARED = ["video_id", "status", "text", "choice", "correct", "harness_score"]


def test_an_exported_run_is_imported_as_the_reference_of_another(output_of, tmp_path):
    root = videomme_release(tmp_path / "release")
    (root / "video").mkdir()
    for video in sorted({row["videoID"] for row in VIDEOMME_ROWS}):
        write_clip(root / "video" / f"{video}.mp4", 24)
    recipe = {
        "benchmark": {"name": "videomme", "root": "release"},
        "model": {"name": "tiny", "num_frames": 4},
        "methods": [{"name": "full"}, {"name": "tango", "retention": 0.3}],
        "executor": "local",
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert "complete" in output_of("data", "check", "videomme", "release")
    # Only `log-run` below needs MLflow; nobody listens here.
    output_of("sweep", "recipe.yaml", "--tracking-uri", "http://127.0.0.1:9")
    (run,) = (tmp_path / "runs").glob("*-videomme-tiny-*")
    sent = read_answers(run)
    sent = sent[sent["cell"] == "full"]
    assert set(sent["status"]) <= {"ok", "unparsed"}
    about = ["--benchmark", "videomme", "--root", "release", "--protocol", "vlmevalkit"]
    about += ["--model", "tiny", "--method", "full"]
    imported = []
    for harness in ("vlmevalkit", "lmms_eval"):
        file = output_of("export", run, "--format", harness).splitlines()[0]
        out = output_of("import", file, "--format", harness, *about)
        imported.append(tmp_path / out.strip().splitlines()[-1].removeprefix("run: "))
        pair = [
            rows.set_index("question_id").sort_index()[COMPARED]
            for rows in (sent, read_answers(imported[-1]))
        ]
        pd.testing.assert_frame_equal(*pair)
    assert "logged to" in output_of("log-run", imported[0])
    output_of("report", imported[0], run, "--output", "both", "--published")
    theirs, ours, pruned = json.loads((tmp_path / "both" / "summary.json").read_text())["cells"]
    assert theirs["accuracy"] == ours["accuracy"]
    assert theirs["harness_accuracy"] == ours["harness_accuracy"] is not None
    assert pruned["versus_full"]["num_questions"] == 4
    table = (tmp_path / "both" / "paper_table.md").read_text()
    assert "Video-MME short | Video-MME medium | Video-MME long | Video-MME overall" in table
