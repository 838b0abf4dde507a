"""Names of versions: where they lead, and what results call them."""

import pytest
from outside_benchmarks import WHOLE_ROWS, write_modules
from releases import mlvu_release, write_json

from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.protocols.protocol import harness_of, listed_name

DATED = ["vlmevalkit@e8e78f05", "vlmevalkit@2026-05", "lmms_eval@0.7.3", "lmms_eval@2024-10"]


@pytest.mark.parametrize("name", ["vlmevalkit", "lmms_eval", *DATED])
def test_every_benchmark_takes_every_version_and_records_the_name_it_was_given(name, tmp_path):
    mlvu = build_benchmark("mlvu", root=str(mlvu_release(tmp_path)), protocol=name)
    assert mlvu.protocol.name == name
    assert mlvu.protocol.harness_score is mlvu.protocols[name].harness_score
    # The embedded world is in no harness: it has one protocol under every name.
    shapes = build_benchmark("shapes", root=str(tmp_path / "shapes"), protocol=name).protocol
    assert shapes == build_benchmark("shapes", root=str(tmp_path / "shapes")).protocol


def test_a_benchmark_of_one_s_own_need_not_list_versions(tmp_path, monkeypatch):
    write_modules(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_json(tmp_path / "whole.json", WHOLE_ROWS)
    name = "whole_bench:Whole"
    benchmark = build_benchmark(name, root=str(tmp_path), protocol="lmms_eval@2024-10")
    assert benchmark.protocol.name == "lmms_eval@2024-10"
    assert benchmark.protocol.macro
    assert listed_name(benchmark.protocols, "lmms_eval@2024-10") == "lmms_eval"


@pytest.mark.parametrize("name", ["vlmevalkit@2020-01", "vlmevalkit@", "vlmevalkit@0.7.3", "me@1"])
def test_an_unknown_version_is_refused(name, tmp_path):
    mlvu_release(tmp_path)
    with pytest.raises(ValueError, match=f"protocol '{name}'; .*vlmevalkit@2026-05"):
        build_benchmark("mlvu", root=str(tmp_path), protocol=name)


def test_what_is_asked_and_shown_depends_on_the_harness_alone():
    names = ("vlmevalkit@2026-05", "lmms_eval", "vlmevalkit@2026-05+subtitles")
    found = [harness_of(name) for name in names]
    assert found == ["vlmevalkit", "lmms_eval", "vlmevalkit+subtitles"]
