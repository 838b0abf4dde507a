"""A user-defined method on Ray and locally."""

import importlib

import pandas as pd
import pytest
from jobs_for_tests import answers_of, job, run, what_was_said
from methods_as_files import own_method

METHOD = own_method(
    "FirstOnes", imports="from first_helper import first", first="assert first(1) == [0]\n"
)
HELPER = "def first(count):\n    return list(range(count))\n"

pytestmark = pytest.mark.ray


def test_workers_run_a_method_imported_by_the_driver(tmp_path, local_ray, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "first_method.py").write_text(METHOD)
    (tmp_path / "code" / "first_helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    importlib.invalidate_caches()
    recipe = {"methods": [{"name": "first_method:FirstOnes", "retention": 0.2}], "limit": 2}
    shapes = tmp_path / "shapes"
    outcome, run_dir = run(job(shapes, **recipe), tmp_path / "ray")
    assert (outcome.num_failed_clips, outcome.num_computed) == (0, 2)
    _, in_a_loop = run(job(shapes, executor="local", **recipe), tmp_path / "local")
    pd.testing.assert_frame_equal(what_was_said(run_dir), what_was_said(in_a_loop))
    answers = answers_of(run_dir)
    assert set(answers["cell"]) == {"FirstOnes r=0.2"}
    assert set(answers["method"]) == {"FirstOnes"}
    assert run_dir.name.endswith("-shapes-tiny-FirstOnes-r0.2")
    (cache,) = (tmp_path / "ray" / "cache").glob("*firstones*")
    assert cache.name.startswith("tiny-8f-firstones-r0.2-")
