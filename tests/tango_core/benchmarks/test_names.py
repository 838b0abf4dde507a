"""Benchmarks by name: those of the package, of other packages, and of one's own modules."""

import sys

import pytest
from outside_benchmarks import write_modules
from releases import PUBLIC

from tango_core import extensions
from tango_core.benchmarks import (
    BENCHMARKS,
    Benchmark,
    benchmark_class,
    build_benchmark,
    facts_of,
)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Two modules in the working directory."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    write_modules(tmp_path)
    yield tmp_path
    for name in ("small_bench", "whole_bench"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_class_states_its_name_its_splits_and_its_protocols(name):
    found = benchmark_class(name)
    assert found.name == name
    assert "test" in found.splits
    assert {"vlmevalkit", "lmms_eval"} <= set(found.protocols)
    if name in PUBLIC:
        assert found.paper_column
        assert found.vlmevalkit_table


def test_a_benchmark_of_ones_own_is_named_by_its_module(modules):
    benchmark = build_benchmark("small_bench:Small", root=str(modules))
    (item,) = benchmark.items()
    assert item.path == str(modules / "clip.mp4")
    assert benchmark.name == "small_bench:Small"
    prompt = benchmark.protocol.render(item.questions[0])
    assert prompt.after.splitlines()[:2] == ["Which color?", "A. red"]
    assert benchmark.protocol.read_choice("B", item.questions[0]) == 1


def test_a_benchmark_of_an_installed_package_is_named_by_its_entry_point(modules, monkeypatch):
    info = modules / "site" / "other-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tango_video.benchmarks]\nsmall = small_bench:Small\n")
    sys.path[:0] = [str(modules), str(modules / "site")]
    extensions.announced.cache_clear()
    try:
        assert build_benchmark("small", root=str(modules)).name == "small"
        with pytest.raises(ValueError, match=r"choose one of: .*, custom, .*, small; or"):
            build_benchmark("smal")
    finally:
        extensions.announced.cache_clear()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("videome", "unknown benchmark.name 'videome'; did you mean 'videomme'?"),
        ("small_bench:NOTHING", "must name a class derived from tango_core.benchmarks.Benchmark"),
        ("small_bench:Smal", "cannot be loaded"),
        ("no_such_bench:Small", "install the package, or start in the directory"),
    ],
)
def test_a_wrong_name_ends_in_one_line(modules, name, message):
    with pytest.raises(ValueError, match="benchmark") as error:
        build_benchmark(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_reports_know_nothing_of_a_benchmark_that_is_not_here():
    assert facts_of("gone.module:Theirs") is Benchmark
    assert facts_of("videomme") is benchmark_class("videomme")
