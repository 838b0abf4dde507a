"""Jobs with a feature store, of models that merge frames inside their encoder as well.

New methods need no decoding or encoding and give the same answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from jobs_for_tests import answers_of, job, run, what_was_said
from summaries import write_summary

from jobs.analysis.clips import JobClips
from jobs.viewer.command import opened
from pipeline.cache.folders import find_caches
from pipeline.cache.names import TOKENS
from tango_core.errors import InputError

METHODS = [
    {"name": "full"},
    *(
        {"name": name, "retention": 0.25}
        for name in (
            *("divprune", "evs", "fastvid", "flashvid", "holitom", "prunevid", "tango"),
            *("topk", "vcast", "vidcom2", "visionzip"),
        )
    ),
    {"name": "fastv", "retention": 0.75},
]
STORE = {"features": "all"}


def work_of(run_dir):
    """What `summary.json` says that a run did."""
    write_summary(run_dir)
    return json.loads((run_dir / "summary.json").read_text())["work"]


def test_stored_features_give_the_same_answers_without_encoding(shapes, tmp_path):
    recipe = {"executor": "local", "limit": 1}
    first, first_dir = run(job(shapes, **recipe, cache=STORE, methods=METHODS[:1]), tmp_path / "on")
    assert (first.num_decoded, first.num_encoded) == (1, 1)
    second, on = run(job(shapes, **recipe, cache=STORE, methods=METHODS), tmp_path / "on")
    assert (second.num_decoded, second.num_encoded) == (0, 0)
    answers = len(answers_of(on))
    assert work_of(on) == {"decoded": 0, "encoded": 0, "compressed": 0, "answered": answers}
    assert work_of(first_dir)["decoded"] == 1
    assert set(answers_of(on)["cache"]) == {"derived"}
    cells = json.loads((on / "summary.json").read_text())["cells"]
    measured = [{"compress", "vision"} & set(cell["latency_ms"]) for cell in cells]
    assert measured == [{"compress"}] * len(METHODS)
    stored = [one for one in find_caches(tmp_path / "on" / "cache") if one.num_clips]
    assert [one.holds_features for one in stored] == [True], "features, and no token set"
    _, off = run(job(shapes, **recipe, methods=METHODS), tmp_path / "off")
    pd.testing.assert_frame_equal(what_was_said(on), what_was_said(off))
    again, _ = run(job(shapes, **recipe, methods=METHODS), tmp_path / "on")
    assert (again.num_encoded, again.num_computed) == (0, 0), "features serve jobs that store none"


def test_a_replaced_source_is_encoded_again(tmp_path):
    recipe = job(tmp_path / "shapes", executor="local", limit=1, cache=STORE)
    assert run(recipe, tmp_path)[0].num_encoded == 1
    assert run(recipe, tmp_path)[0].num_encoded == 0
    for path in (tmp_path / "shapes").rglob("*.mp4"):
        os.utime(path, (2, 2))
    outcome, _ = run(recipe, tmp_path)
    assert (outcome.num_decoded, outcome.num_encoded, outcome.num_hits) == (1, 1, 0)


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from jobs_for_tests import job, run
from pipeline.cache.features import FeatureCache
from pipeline.storage import Storage
left, when = iter(range(int(sys.argv[4]))), sys.argv[5]
def die(*_):
    os.kill(os.getpid(), 9)
put = FeatureCache.put
def counted(self, entry, *rest):
    if next(left, None) is None:
        if when == "inside":
            os.replace = Path.replace = die
        else:
            die()
    put(self, entry, *rest)
FeatureCache.put = counted
run(job(Path(sys.argv[2]), executor="local", limit=4, cache={"features": "all"}), Path(sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("writes", "when"), [(3, "before"), (4, "inside")])
def test_a_killed_writer_only_loses_the_clip_in_flight(shapes, tmp_path, writes, when):
    fixtures = os.path.join(os.path.dirname(__file__), "..", "fixtures")
    command = [sys.executable, "-c", KILLED, fixtures, shapes, tmp_path, str(writes), when]
    done = subprocess.run([str(part) for part in command], check=False, timeout=300)
    assert done.returncode == -9
    (folder, *_) = (f for f in find_caches(tmp_path / "cache") if f.holds_features)
    assert len(folder.entries) == writes, "what was written is there, and nothing half"
    assert sum(".tmp" in file.name for file in folder.files) == (when == "inside")
    outcome, run_dir = run(job(shapes, executor="local", limit=4, cache=STORE), tmp_path)
    # Of a clip whose tokens are there the signals are lacking, and `full` needs none.
    assert outcome.num_encoded == 4 - -(-writes // 2)
    _, clean = run(job(shapes, executor="local", limit=4), tmp_path / "clean")
    pd.testing.assert_frame_equal(what_was_said(run_dir), what_was_said(clean))


MERGING = [{"name": "full"}, {"name": "earlytom", "retention": 0.1}]
MODEL = {"name": "tiny", "merge_layers": "0,1", "merge_window": 6}


def test_merged_features_are_stored_and_are_a_set_of_their_own(shapes, tmp_path):
    recipe = {"executor": "local", "limit": 2, "cache": {"features": "all"}}
    first, plain = run(job(shapes, **recipe, methods=MERGING[:1]), tmp_path / "on")
    own = job(shapes, **recipe, methods=MERGING, model=MODEL)
    second, _ = run(own, tmp_path / "on")
    again, on = run(own, tmp_path / "on")
    assert [one.num_encoded for one in (first, second, again)] == [2, 2, 0]
    recipe["cache"] = {"features": "none"}
    _, off = run(job(shapes, **recipe, methods=MERGING, model=MODEL), tmp_path / "off")
    pd.testing.assert_frame_equal(what_was_said(on), what_was_said(off))
    whole, merged = (answers_of(one)["encode_tflops"].mean() for one in (plain, off))
    assert 0 < merged < 0.9 * whole, "merged frames are not in the later blocks"
    assert answers_of(on)["encode_tflops"].isna().all(), "nothing was encoded"
    answers = what_was_said(on).groupby("cell").first()
    total = answers.loc["full", "tokens_total"]
    assert total == 8 * 64, "of all frames of the clip"
    assert answers.loc["full", "tokens_kept"] < total
    assert abs(answers.loc["earlytom r=0.1", "tokens_kept"] - 0.1 * total) <= 8


def test_the_viewer_draws_merged_frames_at_their_own_times(shapes, tmp_path):
    recipe = {"executor": "local", "limit": 1, "cache": {"features": "all"}}
    _, run_dir = run(job(shapes, **recipe, methods=MERGING, model=MODEL), tmp_path)
    (store,) = (one.cache for one in find_caches(tmp_path / "cache") if one.holds_features)
    (key,) = store.parts()[TOKENS]
    features = store.read(key, [TOKENS], frozenset()).features
    merged, length = features.tokens.shape[:2]
    assert merged < 8, "some frames were merged"
    with opened([run_dir]) as pages:
        for column in (0, 1):
            found = pages.tokens(0, column)
            assert found.sets[0].plan.grid[0] == merged
            assert list(found.view.times) == features.timestamps.tolist()
            assert found.sets[0].missing == ()
    full = answers_of(run_dir).query("cell == 'full'")["tokens_kept"]
    assert set(full) == {merged * length}


def test_analyses_refuse_merged_frames(shapes, tmp_path):
    recipe = job(shapes, executor="local", limit=1, methods=MERGING, model=MODEL)
    with pytest.raises(InputError, match=r"leave model\.merge_layers out"):
        JobClips(recipe, str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("method", "advice"),
    [("earlytom", r"set model\.merge_layers"), ("aot", "it provides attention")],
)
def test_a_method_whose_signals_are_lacking_is_refused_with_what_to_do(
    shapes, tmp_path, method, advice
):
    recipe = job(shapes, limit=1, methods=[{"name": method, "retention": 0.5}])
    with pytest.raises(InputError, match=f"method '{method} r=0.5': .*{advice}"):
        run(recipe, tmp_path)
