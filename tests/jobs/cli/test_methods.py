"""`tango check-method` and a method of one's own in a recipe, as a person at a terminal."""

from __future__ import annotations

import importlib
import sys

import pytest
import yaml

METHOD = '''
from dataclasses import dataclass
import torch
from tango_core.compressors.base import Compressor, num_kept, select

@dataclass(frozen=True)
class First(Compressor):
    """Keep the first tokens."""

    skip: int = 0

    def _compress(self, features):
        total = features.tokens[..., 0].numel()
        return select(features, torch.arange(num_kept(total, self.retention)) + self.skip)
'''


@pytest.fixture
def own_method(tmp_path, monkeypatch):
    """A module in the directory in which the command is started."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "own_methods.py").write_text(METHOD)
    importlib.invalidate_caches()
    yield "own_methods:First"
    sys.modules.pop("own_methods", None)


def test_a_method_that_keeps_the_contract(tango, own_method):
    code, out, err = tango("check-method", own_method, "--set", "retention=0.2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert all(line.startswith("ok      ") for line in lines)
    assert "ok      same input, same output" in lines
    assert "ok      same output in another process" in lines


def test_a_method_that_breaks_it(tango, own_method):
    code, out, _ = tango("check-method", own_method, "--set", "retention=0.9", "--set", "skip=9")
    assert code == 1
    failed = [line for line in out.splitlines() if line.startswith("FAILED  ")]
    assert any(": clip one-frame, float32, retention 0.9: " in line for line in failed)


@pytest.mark.slow
def test_a_recipe_names_a_method_of_ones_own(tango, own_method, tmp_path):
    recipe = {
        "benchmark": {"name": "shapes"},
        "model": {"name": "tiny"},
        "methods": [
            {"name": "full"},
            {"name": own_method, "retention": 0.2, "skip": [0, 1]},
        ],
        "executor": "local",
        "limit": 1,
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    code, out, _ = tango("sweep", "recipe.yaml")
    assert code == 0
    assert "First r=0.2 skip=0" in out
    assert "First r=0.2 skip=1" in out
    caches = sorted(path.name for path in (tmp_path / "runs" / "cache").iterdir())
    assert [name.rpartition("-")[0] for name in caches] == [
        "tiny-8f-first-r0.2",
        "tiny-8f-first-r0.2",
        "tiny-8f-full",
    ]
