"""Caches, features and an interrupted run of an earlier version are read and continued."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.cache.derived import compressor_of, derived, features_with
from pipeline.cache.directory import TokenCache
from pipeline.cache.folders import check_entries, find_caches
from pipeline.progress.answers import read_answers

EARLIER = Path(__file__).parents[1] / "fixtures" / "earlier"
NO_SERVER = ("--tracking-uri", "http://127.0.0.1:9")
CLIPS = 2


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    """A copy of what 0.2.0 wrote before plans went: see `tests/fixtures/earlier/README.md`."""
    shutil.copytree(EARLIER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def work_of(folder):
    (summary,) = folder.glob("*/summary.json")
    return json.loads(summary.read_text())["work"]


def test_token_caches_of_an_earlier_version_are_hits(tango, earlier):
    arguments = ("--output", "out", "--cache", "tokens", *NO_SERVER)
    assert tango("sweep", "recipe.yaml", *arguments)[0] == 0
    assert work_of(earlier / "out") == {
        "decoded": 0, "encoded": 0, "compressed": 0, "answered": 2 * CLIPS,
    }  # fmt: skip


@pytest.mark.parametrize("stored", ["all", "none"])
def test_features_of_an_earlier_version_are_hits(tango, earlier, stored):
    arguments = ("--output", "out", "--cache", "features", "--limit", "1", *NO_SERVER)
    setting = f"cache.features={stored}"
    assert tango("sweep", "recipe.yaml", *arguments, "--set", setting)[0] == 0
    work = work_of(earlier / "out")
    assert (work["decoded"], work["encoded"]) == (0, 0)


def test_features_reproduce_the_stored_token_sets(earlier):
    checked = 0
    for folder in find_caches(earlier / "tokens"):
        assert [problem for _, problem in check_entries(folder)] == [None] * CLIPS
        compressor = compressor_of(folder.settings)
        read = features_with(
            TokenCache.existing(str(earlier / "features"), folder.name), compressor
        )
        for key in sorted(folder.cache.keys()):
            try:
                made = derived(compressor, read(key)).video
            except FileNotFoundError:  # features are there of one clip
                continue
            kept = folder.cache.read(key).video
            assert made.tokens.equal(kept.tokens)
            assert made.indices.equal(kept.indices)
            checked += 1
    assert checked == 2


def test_an_interrupted_run_of_an_earlier_version_is_continued(tango, earlier):
    (run,) = (earlier / "runs").iterdir()
    before = read_answers(run / "answers").to_pylist()
    arguments = ("--output", "runs", "--cache", "tokens", *NO_SERVER)
    assert tango("sweep", "recipe.yaml", *arguments, "--resume", run.name)[0] == 0
    assert work_of(earlier / "runs") == {
        "decoded": 0, "encoded": 0, "compressed": 0, "answered": 2 * (CLIPS - 1),
    }  # fmt: skip
    after = read_answers(run / "answers").to_pylist()
    assert len(after) == 2 * CLIPS
    assert all(row in after for row in before), "what was answered is not asked again"
