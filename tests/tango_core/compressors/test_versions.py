"""Versions of shipped methods: outputs move with them alone, and edited sources are told apart."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass

import method_outputs
import pytest

from tango_core.compressors import METHODS, build_method, released
from tango_core.compressors.base import keep
from tango_core.compressors.baselines import TopK
from tango_core.compressors.evs import EVS
from tango_core.compressors.tango.method import Tango

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
    assert json.loads(released.TABLE.read_text()) == released.current_digests(), REMEDY


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


def test_what_did_not_move_keeps_its_recorded_digits(tables):
    before = method_outputs.OUTPUTS.read_bytes()
    assert method_outputs.record() == []
    assert method_outputs.OUTPUTS.read_bytes() == before


def test_a_version_is_part_of_the_identity_from_2_on(monkeypatch):
    method = build_method("topk", retention=0.1).compressor
    assert "version" not in method.identity()
    monkeypatch.setattr(TopK, "version", 2)
    assert method.identity()["version"] == 2
    assert build_method("topk", retention=1.0).compressor.identity() == {"name": "full"}


@dataclass(frozen=True)
class OwnTango(Tango):
    """A user's class on top of a shipped one."""


@pytest.fixture
def edited(monkeypatch):
    """Makes the process believe that a file was edited."""

    def edit(path):
        assert path in released.current_digests()
        monkeypatch.setattr(released, "edited_files", lambda: frozenset({path}))
        released._edited_digest.cache_clear()

    yield edit
    released._edited_digest.cache_clear()


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("compressors/tango/budgets.py", {"Tango", "OwnTango"}),
        ("ops/st_rope.py", {"Tango", "OwnTango"}),
        ("compressors/evs.py", {"OwnTango", "EVS"}),  # the file of OwnTango imports EVS, too
        ("compressors/base.py", {"Tango", "OwnTango", "EVS"}),
        ("compressors/vcast.py", set()),
    ],
)
def test_an_edited_source_shows_in_the_methods_that_use_it(edited, path, names):
    plain = [cls(retention=0.1).identity() for cls in (Tango, OwnTango, EVS)]
    assert not any("edited_digest" in identity for identity in plain)
    edited(path)
    digests = {
        cls.__name__: cls(retention=0.1).identity().get("edited_digest")
        for cls in (Tango, OwnTango, EVS)
    }
    assert {name for name, digest in digests.items() if digest} == names


def test_steps_inside_the_model_do_not_decide_tokens():
    assert not any("in_llm" in path for path in released.current_digests())
    assert "compressors/hybrid.py" in released.sources_of(Tango)


EDIT_AND_ASK = """
from pathlib import Path
import tango_core.compressors.evs as evs
from tango_core.compressors import build_method
with Path(evs.__file__).open("a") as source:
    source.write("# edited\\n")
try:
    build_method("evs", retention=0.1).compressor.identity()
except ValueError as error:
    print(error)
"""


def test_a_shipped_method_that_was_edited_since_its_import_is_refused(tmp_path):
    shutil.copytree(
        released.PACKAGE, tmp_path / "tango_core", ignore=shutil.ignore_patterns("__pycache__")
    )
    done = subprocess.run(
        [sys.executable, "-c", EDIT_AND_ASK], cwd=tmp_path, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    (line,) = done.stdout.decode().splitlines()
    assert line.startswith(str(tmp_path / "tango_core/compressors/evs.py has changed on disk"))
    assert "restart the process" in line


PRINT_IDENTITIES = """
import json
from tango_core.compressors import build_method
print(json.dumps([build_method(n, retention=0.1).compressor.identity() for n in ("tango", "evs")]))
"""


@pytest.mark.slow
def test_a_checkout_with_an_edited_method_has_caches_of_its_own(tmp_path):
    """Line endings, as Git may write them, are no edit."""
    copy = tmp_path / "tango_core"
    shutil.copytree(released.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with (copy / "compressors/tango/selection.py").open("a") as source:
        source.write("# edited\n")
    done = subprocess.run(
        [sys.executable, "-c", PRINT_IDENTITIES], cwd=tmp_path, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    tango, evs = json.loads(done.stdout)
    assert len(tango.pop("edited_digest")) == 16
    assert tango == build_method("tango", retention=0.1).compressor.identity()
    assert evs == build_method("evs", retention=0.1).compressor.identity()
