"""`tango data get` for every benchmark: what was fetched can be read, and is not fetched again."""

from __future__ import annotations

import hub_releases
import pytest
import releases
from rich.console import Console

from jobs.fetch.data import data_get
from tango_core.benchmarks import build_benchmark

pytestmark = pytest.mark.slow

VIDEOMME = "datasets/lmms-lab/Video-MME"
MADE = {
    "videomme_v2": ("MME-Benchmarks/Video-MME-v2", hub_releases.videomme_v2_on_the_hub),
    "lvbench": ("lmms-eval/LVBench", hub_releases.lvbench_on_the_hub),
    "videomme": ("lmms-lab/Video-MME", hub_releases.videomme_on_the_hub),
    "longvideobench": ("longvideobench/LongVideoBench", hub_releases.longvideobench_on_the_hub),
    "mlvu": ("MLVU/MVLU", hub_releases.mlvu_on_the_hub),
    "mvbench": ("OpenGVLab/MVBench", lambda it: hub_releases.mvbench_on_the_hub(it, "main")),
    "mvbench, cut": ("OpenGVLab/MVBench", lambda it: hub_releases.mvbench_on_the_hub(it, "video")),
    "motionbench": ("zai-org/MotionBench", hub_releases.motionbench_on_the_hub),
} | {
    name: (repository, hub_releases.with_one_archive(name, getattr(releases, layout), archive))
    for name, repository, layout, archive in (
        ("charades_sta", "lmms-eval/charades_sta", "charades_parquet", "Charades_v1_480.zip"),
        ("tempcompass", "lmms-lab/TempCompass", "tempcompass_release", "tempcompass_videos.zip"),
        ("egoschema", "lmms-lab/egoschema", "egoschema_release", "videos_chunked_01.zip"),
        ("nextqa", "lmms-lab/NExTQA", "nextqa_release", "videos.zip"),
        ("perceptiontest", "lmms-lab/PerceptionTest_Val", "perceptiontest_release", "a.zip"),
        ("tomato", "lmms-eval/TOMATO", "tomato_release", "videos.zip"),
        ("tvbench", "FunAILab/TVBench", "tvbench_release", "video/action_count.zip"),
    )
}


@pytest.mark.parametrize("case", MADE)
def test_a_benchmark_that_was_fetched_passes_its_check(server, tmp_path, case):
    (repository, make), branch = MADE[case], "video" if "cut" in case else "main"
    server.publish(f"datasets/{repository}", make(tmp_path / "made"), branch=branch)
    console = Console(record=True, width=200, force_terminal=False)
    name = case.partition(",")[0]
    how = {"revision": branch, "yes": True}
    assert data_get(name, tmp_path / "out", console, **how) == 0
    text = console.export_text()
    assert text.rstrip().endswith("complete")
    assert "missing" not in text or "withheld: missing: 1" in text
    assert not list((tmp_path / "out").rglob("*.zip"))
    server.requests.clear()
    assert data_get(name, tmp_path / "out", console, **how) == 0
    assert "all of it is here" in console.export_text()
    assert {each.path.split("/")[1] for each in server.requests} == {"api"}


def test_a_release_without_videos_says_where_they_are(server, tmp_path):
    server.publish(
        "datasets/zai-org/LVBench", hub_releases.lvbench_of_its_authors(tmp_path / "made")
    )
    console = Console(record=True, width=200, force_terminal=False)
    got = data_get("lvbench", tmp_path / "out", console, repository="zai-org/LVBench", yes=True)
    assert got == 0
    text = console.export_text()
    assert "note: the videos are on YouTube" in text
    questions = build_benchmark("lvbench", root=str(tmp_path / "out")).items()
    assert sum(len(item.questions) for item in questions) == 3


def test_subtitles_are_fetched_where_they_are_asked_for(server, tmp_path):
    files = hub_releases.videomme_on_the_hub(tmp_path / "made")
    cues = b"1\n00:00:01,000 --> 00:00:02,000\nhello\n"
    files["subtitle.zip"] = hub_releases.zipped({"subtitle/aAaAaAaAaA0.srt": cues})
    server.publish(VIDEOMME, files)
    root = tmp_path / "out"
    console = Console(record=True, width=200, force_terminal=False)
    assert data_get("videomme", root, console, yes=True) == 0
    with pytest.raises(FileNotFoundError, match="--only subtitles"):
        build_benchmark("videomme", root=str(root), subtitles=True)
    assert data_get("videomme", root, console, only=["subtitles"], yes=True) == 0
    shown = build_benchmark("videomme", root=str(root), subtitles=True)
    assert [item.subtitles.text for item in shown.items()] == [cues.decode(), None]
