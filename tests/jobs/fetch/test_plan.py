"""What is stated before a download starts."""

from __future__ import annotations

import pytest
from hub_releases import longvideobench_on_the_hub, mlvu_on_the_hub, tarred, zipped
from rich.console import Console

from jobs.fetch import data
from jobs.fetch import hub as hub_module
from jobs.fetch.data import data_get, make_plan
from jobs.fetch.hub import FetchError, Folder
from tango_core.benchmarks import BENCHMARKS, benchmark_class, build_benchmark
from tango_core.benchmarks.releases import Release, archive_of

NAME = "datasets/owner/data"
RELEASE = Release(
    repository="owner/data",
    licence="cc0",
    annotations=("json/*.json",),
    videos=("*.zip",),
    subtitles=("subs.tar",),
)
FILES = {
    "json/a.json": b"[]",
    "a.zip": zipped({"a.mp4": bytes(4000)}),
    "b.zip": zipped({"b.mp4": bytes(9000)}),
    "subs.tar": tarred({"a.srt": b"1"}),
    "README.md": b"",
}
RELEASES = [release for name in BENCHMARKS for release in benchmark_class(name).releases]


def plan_of(hub, root, only=(), keep=False, release=RELEASE):
    return make_plan(hub(), release, Folder(root), only, keep=keep, jobs=2)


def output_of(benchmark, root, **how):
    """Exit code and what is printed."""
    console = Console(record=True, width=200, force_terminal=False)
    return data_get(benchmark, root, console, **how), console.export_text()


def test_only_what_is_needed_or_asked_for_is_fetched(server, hub, tmp_path):
    server.publish(NAME, FILES)
    names = [file.path for file in plan_of(hub, tmp_path).files]
    assert names == ["json/a.json", "a.zip", "b.zip"]  # the small ones first
    names = [file.path for file in plan_of(hub, tmp_path, ["subtitles"]).files]
    assert names == ["subs.tar"]


def test_a_release_whose_layout_changed_is_named(server, hub, tmp_path):
    server.publish(NAME, {name: data for name, data in FILES.items() if "zip" not in name})
    with pytest.raises(FetchError, match=r"has no \*\.zip at revision main; its layout has"):
        plan_of(hub, tmp_path)
    plan_of(hub, tmp_path, ["annotations"])


def test_room_for_what_comes_and_for_what_is_unpacked_meanwhile(server, hub, tmp_path):
    server.publish(NAME, {name: data for name, data in FILES.items() if "b.zip" not in name})
    size = len(FILES["json/a.json"]) + len(FILES["a.zip"])
    spare = data._SPARE_BYTES
    assert plan_of(hub, tmp_path).room == size + len(FILES["a.zip"]) + spare
    many = {
        f"{number}.zip": zipped({f"{number}.mp4": bytes([number]) * 9000}) for number in range(9)
    }
    server.publish(NAME, {**many, "json/a.json": b"[]"})
    total, one = sum(map(len, many.values())), len(many["0.zip"])
    assert plan_of(hub, tmp_path).room == 2 + total + 3 * one + spare
    assert plan_of(hub, tmp_path, keep=True).room == 2 + 2 * total + spare


def test_a_disk_that_is_too_small_is_refused_before_anything_comes(monkeypatch, server, tmp_path):
    server.publish("datasets/longvideobench/LongVideoBench", longvideobench_on_the_hub(tmp_path))
    monkeypatch.setattr(hub_module, "free_bytes", lambda _: 10_000)
    root = tmp_path / "out"
    with pytest.raises(FetchError, match=r"has 10\.0 kB free, but this takes 67\.. MB"):
        data_get("longvideobench", root, Console(quiet=True), yes=True)
    assert not root.exists()


def test_a_dry_run_states_all_and_writes_nothing(server, tmp_path):
    server.publish(
        "datasets/longvideobench/LongVideoBench",
        longvideobench_on_the_hub(tmp_path / "hub"),
        licence="cc-by-nc-sa-4.0",
    )
    root = tmp_path / "out"
    code, text = output_of("longvideobench", root, dry_run=True)
    assert code == 0
    assert not root.exists()
    page = f"{server.url}/datasets/longvideobench/LongVideoBench"
    assert f"licence: CC-BY-NC-SA 4.0; the hub says: cc-by-nc-sa-4.0; {page}" in text
    assert "not now: --only subtitles" in text
    assert "archives to unpack: 1; archives are removed once they are unpacked" in text
    assert not [each for each in server.requests if each.server == "store"]


def test_nobody_is_asked_where_there_is_no_terminal(server, tmp_path):
    server.publish("datasets/MLVU/MVLU", mlvu_on_the_hub(tmp_path / "hub"))
    with pytest.raises(FetchError, match="no terminal to ask on; add --yes"):
        output_of("mlvu", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_annotations_alone_can_be_read_afterwards(server, tmp_path):
    server.publish("datasets/MLVU/MVLU", mlvu_on_the_hub(tmp_path / "hub"))
    how = {"only": ["annotations"], "yes": True}
    code, text = output_of("mlvu", tmp_path / "out", **how)
    assert code == 0
    questions = build_benchmark("mlvu", root=str(tmp_path / "out")).items()
    assert sum(len(item.questions) for item in questions) == 8
    assert not (tmp_path / "out/MLVU/video").exists()
    code, text = output_of("mlvu", tmp_path / "out", **how)
    assert (code, "all of it is here" in text) == (0, True)


def test_a_file_of_the_users_is_not_overwritten(server, hub, tmp_path):
    server.publish(NAME, FILES)
    (tmp_path / "json").mkdir()
    (tmp_path / "json/a.json").write_text("[1, 2, 3]")
    with pytest.raises(FetchError, match=r"a\.json is another file than json/a\.json of the hub"):
        plan_of(hub, tmp_path)


def test_a_name_of_the_hub_that_leads_elsewhere_is_refused(server, hub, tmp_path):
    server.publish(NAME, {**FILES, "json/../../x.json": b"[]"})
    with pytest.raises(FetchError, match="leads out of the folder"):
        plan_of(hub, tmp_path)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.repository)
def test_every_release_states_what_is_needed(release):
    needed = {part.name for part in release.parts if part.needed}
    assert needed == {"annotations", "videos"} or (needed == {"annotations"} and release.notes)
    assert release.licence


@pytest.mark.parametrize(
    ("path", "archive"),
    [
        ("videos.tar.part.aa", "videos.tar"),
        ("a.zip.001", "a.zip"),
        ("a.tar.gz.part.ab", "a.tar.gz"),
        ("a.zip.md5", None),
    ],
)
def test_archives_and_their_pieces(path, archive):
    assert archive_of(path) == archive
