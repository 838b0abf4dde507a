"""`tango export --format hub`, read back with the hub's own classes."""

from __future__ import annotations

import pandas as pd
import pytest
import yaml
from fake_answers import cell, facts_of, fake_answers, write_run
from huggingface_hub import DatasetCard, parse_eval_result_entries

from jobs.report.compare import write_report
from tango_core.benchmarks.public.videomme import VideoMMEBenchmark

CELLS = (cell("full", 1.0, "videomme"), cell("tango", 0.1, "videomme"))


@pytest.fixture
def run(tmp_path):
    """A run of 12 clips with three questions each, one of which failed."""
    facts = facts_of(*CELLS, run_id="run", versions={"tango-video": "0.2.0"}, num_frames=32)
    answers = fake_answers(facts, num_clips=12, failed_clips=(2,))
    answers["error"] = answers["error"].str.replace("clip ", f"decode: {tmp_path}/videos/")
    folder = write_run(tmp_path / "run", answers, facts)
    recipe = {
        "benchmark": {"name": "videomme", "root": str(tmp_path)},
        "model": {"name": "llava-onevision-7b", "saliency_from": str(tmp_path)},
        "methods": [{"name": "full"}, {"name": "tango", "retention": 0.1}],
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(recipe))
    write_report(folder)
    return folder


def exported(tango, run, *options):
    code, out, err = tango("export", run, "--format", "hub", *options)
    assert code == 0, err
    return run / "export" / "hub", err, len(out.splitlines())


def test_the_data_set_has_a_card_the_answers_and_no_path_of_this_machine(tango, run, tmp_path):
    folder, err, _ = exported(tango, run)
    assert "no scores for a model repository" in err  # 36 questions are not the whole benchmark
    assert not (folder / "model").exists()
    card = DatasetCard.load(folder / "dataset" / "README.md")
    assert card.data.source_datasets == ["lmms-lab/Video-MME"]
    assert card.data.configs == [{"config_name": "answers", "data_files": "answers/*.parquet"}]
    assert "| tango r=0.1 |" in card.text
    assert "| commit of tango-video | 0123456789abcdef" in card.text
    answers = pd.read_parquet(folder / "dataset" / "answers")
    assert len(answers) == len(pd.read_parquet(run / "answers")) == 72
    errors = set(answers["error"]) - {""}
    assert errors == {"decode: 2.mp4: 0 of 32 frames decoded; the file is probably truncated"}
    recipe, summary = (
        (folder / "dataset" / name).read_text() for name in ("recipe.yaml", "summary.json")
    )
    assert "decode: 2.mp4: " in summary
    assert str(tmp_path) not in recipe + card.content + summary
    assert yaml.safe_load(recipe)["benchmark"] == {"name": "videomme"}


def test_a_whole_benchmark_gives_scores_that_name_their_source(tango, run, monkeypatch):
    monkeypatch.setattr(VideoMMEBenchmark, "splits", {"test": 36})
    folder, _, printed = exported(tango, run, "--repository", "me/answers")
    files = sorted((folder / "model" / ".eval_results").iterdir())
    assert [file.name for file in files] == ["videomme.yaml", "videomme_tango_r_0.1.yaml"]
    assert printed == 5
    for file, method in zip(files, ("full", "tango r=0.1"), strict=True):
        (entry,) = parse_eval_result_entries(yaml.safe_load(file.read_text()))
        assert entry.dataset_id == "lmms-lab/Video-MME"
        assert 0 < entry.value < 100
        assert entry.date == "2025-03-01"
        assert entry.source_url.endswith("/datasets/me/answers")
        assert entry.notes.startswith(f"{method}, ")
        assert entry.notes.endswith(
            ", 32 frames, accuracy in %, tango-video 0.2.0, 3 questions failed"
        )


def test_a_wrong_repository_is_one_line(tango, run):
    code, _, err = tango("export", run, "--format", "hub", "--repository", "answers")
    assert code == 2
    assert "is not an id of the form owner/name" in err
    assert err.count("\n") == 1
