"""`tango export`, `tango import` and `tango report` between us and the harnesses' files."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from exported_answers import REPLIES
from fake_answers import cell, facts_of
from releases import mlvu_release, videomme_release
from summaries import read_answers

from jobs.harness.predictions import answer_rows
from pipeline.rows import ANSWER
from tango_core.benchmarks import build_benchmark


def write_run(folder, name, root, cells, *, keep=None, num_frames=32, **job):
    """A run directory whose cells hold real replies; the second question of each failed."""
    benchmark = build_benchmark(name, root=str(root))
    ids = [record.question.id for record in benchmark.records()]
    parts = []
    for shift, entry in enumerate(cells):
        replies = {q: REPLIES[(at + shift) % len(REPLIES)] for at, q in enumerate(ids)}
        replies[ids[1]] = None
        rows = answer_rows(replies, benchmark, entry.name, folder)
        parts.append(rows.assign(method=entry.method, retention=entry.retention).iloc[:keep])
    (folder / "answers").mkdir(parents=True)
    pd.concat(parts).to_parquet(folder / "answers" / "part-00000.parquet")
    facts_of(*cells, run_id=folder.name, llm=None, num_frames=num_frames).save(folder)
    recipe = {
        "benchmark": {"name": name, "root": str(root)},
        "methods": [{"name": "full"}, {"name": "tango", "retention": 0.1}],
        **job,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def cells_of(name):
    return [cell("full", 1.0, name), cell("tango", 0.1, name)]


def folder_of(out):
    """Path on the last line of an import."""
    return out.strip().splitlines()[-1].removeprefix("run: ")


def test_questions_that_were_not_asked_are_failures_unless_said_otherwise(tango, tmp_path):
    root = videomme_release(tmp_path / "release")
    run = write_run(tmp_path / "run", "videomme", root, cells_of("videomme"))
    full = tango("export", run, "--format", "vlmevalkit")[1].split()[0]
    options = ["--format", "vlmevalkit", "--benchmark", "videomme", "--root", root]
    frame = pd.read_csv(tmp_path / full, sep="\t", keep_default_na=False).iloc[:3]
    frame.to_csv(tmp_path / "some.tsv", sep="\t", index=False)
    counted = []
    for more in ([], ["--partial"]):
        _, out, _ = tango("import", "some.tsv", *options, *more)
        folder = tmp_path / folder_of(out)
        summary = json.loads((folder / "summary.json").read_text())
        counted.append((summary["num_questions"], summary["num_failed"]))
        (part,) = (folder / "answers").iterdir()
        assert pq.read_schema(part).equals(ANSWER, check_metadata=False)
    assert counted == [(4, 2), (3, 1)]


@pytest.mark.parametrize("harness", ["vlmevalkit", "lmms_eval"])
def test_a_run_of_some_clips_becomes_a_file_of_some_questions(tango, tmp_path, harness):
    root = mlvu_release(tmp_path / "release")
    run = write_run(tmp_path / "run", "mlvu", root, cells_of("mlvu"), keep=3, limit=2)
    code, out, err = tango("export", run, "--format", harness)
    assert code == 0, err
    code, out, err = tango(
        "import", out.splitlines()[0], "--format", harness,
        "--benchmark", "mlvu", "--root", root, "--partial",
    )  # fmt: skip
    assert code == 0, err
    assert len(read_answers(tmp_path / folder_of(out))) == 3


def test_runs_that_cannot_be_exported_are_refused(tango, tmp_path):
    root = mlvu_release(tmp_path / "release")
    unfinished = write_run(tmp_path / "part", "mlvu", root, cells_of("mlvu"), keep=3)
    code, _, err = tango("export", unfinished, "--format", "vlmevalkit")
    assert (code, "have no answer" in err, "--resume" in err) == (2, True, True)
    run = write_run(tmp_path / "run", "mlvu", root, cells_of("mlvu"))
    shapes = "{benchmark: {name: shapes}, method: {name: full}}"
    for recipe, said in (
        (shapes, "shapes is not in lmms-eval"),
        ("[1", "job.yaml is not YAML"),
        (None, "holds no job.yaml"),
    ):
        (run / "job.yaml").write_text(recipe) if recipe else (run / "job.yaml").unlink()
        code, _, err = tango("export", run, "--format", "lmms_eval")
        assert (code, said in err.splitlines()[-1]) == (2, True), err
    assert tango("export", tmp_path, "--format", "lmms_eval")[0] == 2


def test_a_run_with_subtitles_has_a_task_of_its_own(tango, tmp_path):
    root = videomme_release(tmp_path / "release")
    (root / "subtitle").mkdir()
    (root / "subtitle" / "aAaAaAaAaA0.srt").write_text("")
    shown = {"name": "videomme", "root": str(root), "subtitles": True}
    cells = cells_of("videomme")
    run = write_run(tmp_path / "run", "videomme", root, cells, benchmark=shown)
    code, out, err = tango("export", run, "--format", "lmms_eval", "--output", "out")
    assert code == 0, err
    file = out.splitlines()[0]
    assert file.endswith("_samples_videomme_w_subtitle.jsonl")
    sample = json.loads((tmp_path / file).read_text().splitlines()[0])
    assert sample["input"].startswith("This video's subtitles are listed below: \n<subtitles>")
    about = ("--format", "lmms_eval", "--benchmark", "videomme", "--root", root)
    assert tango("import", file, *about)[0] == 2
    code, out, err = tango("import", file, *about, "--subtitles")
    assert code == 0, err
    summary = json.loads((tmp_path / folder_of(out) / "summary.json").read_text())
    assert summary["cells"][0]["protocol"] == "lmms_eval+subtitles"
