"""Versions of shipped methods: outputs move with them alone, and edited sources are told apart."""

import json
import shutil
import subprocess
import sys

import method_outputs
import pytest

from tango_core import code_identity
from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import keep
from tango_core.compressors.baselines import TopK

REMEDY = "run make methods (tango_core/compressors/README.md, 'To change a shipped method')"


@pytest.mark.parametrize("name", method_outputs.compressors())
def test_outputs_move_only_with_the_version(name):
    was, cls = method_outputs.recorded().get(name), METHODS[name]
    assert was is not None, f"{name} is new; {REMEDY}"
    assert cls.version == was["version"], f"version of {name} is new; {REMEDY}"
    found = method_outputs.outputs(name)
    assert method_outputs.moved(found, was["cases"]) == [], f"{name}: {REMEDY}"
    assert found.keys() == was["cases"].keys(), f"cases of {name} are new; {REMEDY}"


def test_the_sources_are_the_recorded_ones():
    assert json.loads(code_identity.TABLE.read_text()) == code_identity.current_digests(), REMEDY


def keeps_the_first(self, features):
    """Another method than TopK."""
    return keep(features, (features.saliency[0] >= 0).nonzero()[:, 0])


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Tables that may be written, of TopK alone."""
    monkeypatch.setattr(method_outputs, "compressors", lambda: ["topk"])
    monkeypatch.setattr(method_outputs, "OUTPUTS", tmp_path / "outputs.json")
    monkeypatch.setattr(method_outputs, "TABLE", tmp_path / "released.json")
    assert method_outputs.record() == []


def test_moved_outputs_are_recorded_only_with_another_version(tables, monkeypatch):
    first = method_outputs.recorded()
    monkeypatch.setattr(TopK, "_plan", keeps_the_first)
    (line,) = method_outputs.record()
    assert line.startswith("topk: 8 outputs moved")
    assert "write version = 2 in class TopK of tango_core.compressors.baselines" in line
    assert method_outputs.recorded() == first
    monkeypatch.setattr(TopK, "version", 2)
    assert method_outputs.record() == []
    second = method_outputs.recorded()["topk"]
    assert second["version"] == 2
    assert second["cases"] != first["topk"]["cases"]


def test_a_version_is_part_of_the_identity_from_2_on(monkeypatch):
    method = build_method("topk", retention=0.1).compressor
    assert "version" not in method.identity()
    monkeypatch.setattr(TopK, "version", 2)
    assert method.identity()["version"] == 2
    assert build_method("topk", retention=1.0).compressor.identity() == {"name": "full"}


PRINT_IDENTITIES = """
import json
from tango_core.compressors import build_method
print(json.dumps([build_method(n, retention=0.1).compressor.identity() for n in ("tango", "evs")]))
"""


@pytest.mark.slow
def test_a_checkout_with_an_edited_method_has_caches_of_its_own(tmp_path):
    """Line endings, as Git may write them, are no edit."""
    copy = tmp_path / "tango_core"
    shutil.copytree(code_identity.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with (copy / "compressors/tango/selection.py").open("a") as source:
        source.write("# edited\n")
    done = subprocess.run(
        [sys.executable, "-c", PRINT_IDENTITIES], cwd=tmp_path, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    edited = [
        {name: value for name, value in one.items() if name != "edited_digest"}
        for one in json.loads(done.stdout)
    ]
    assert [len(one["edited_digest"]) for one in json.loads(done.stdout)] == [16, 16]
    released = [build_method(name, retention=0.1).compressor for name in ("tango", "evs")]
    assert edited == [one.identity() for one in released]
