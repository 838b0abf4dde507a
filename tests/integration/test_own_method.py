"""A user-defined method on Ray and locally."""

import importlib

import pandas as pd
import pytest
from jobs_for_tests import answers_of, job, run, what_was_said

METHOD = '''
from dataclasses import dataclass

import torch

from tango_core.compressors.base import Compressor, num_kept, select
from {helper} import first


@dataclass(frozen=True)
class FirstOnes(Compressor):
    """Keep the first tokens of a clip."""

    def __post_init__(self):
        super().__post_init__()

    def _compress(self, features):
        return select(features, first(num_kept(features.tokens[..., 0].numel(), self.retention)))
'''
HELPER = "import torch\n\ndef first(count):\n    return torch.arange(count)\n"

pytestmark = pytest.mark.ray


def test_workers_run_a_method_imported_by_the_driver(tmp_path, local_ray, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "first_method.py").write_text(METHOD.format(helper="first_helper"))
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
