"""The embedded benchmark's files: generated once, complete, equal everywhere, as drawn."""

import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest

from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.shapes import benchmark as shapes
from tango_core.benchmarks.shapes.benchmark import ShapesBenchmark
from tango_core.benchmarks.shapes.render import render
from tango_core.benchmarks.shapes.world import clip_at


def files(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def decode(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
        frames = list(container.decode(stream))
    pixels = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
    return pixels, [float(frame.time) for frame in frames]


def test_only_the_clips_asked_for_are_generated(tmp_path):
    benchmark = build_benchmark("shapes", root=str(tmp_path))
    assert files(tmp_path) == []
    first = list(benchmark.items(2))
    assert [path.suffix for path in files(tmp_path)] == [".mp4", ".mp4", ".json"]
    taken = list(islice(benchmark.items(), 3))
    assert taken[:2] == first
    assert len(files(tmp_path)) == 4
    # A second run writes nothing.
    before = [path.stat().st_mtime_ns for path in files(tmp_path)]
    assert list(build_benchmark("shapes", root=str(tmp_path)).items(3)) == taken
    assert [path.stat().st_mtime_ns for path in files(tmp_path)] == before


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_ones(tmp_path):
    def made(root, **options):
        items = build_benchmark("shapes", root=str(tmp_path / root), **options).items(2)
        return [Path(item.path).read_bytes() for item in items]

    once = made("a")
    assert once == made("b")
    others = [made("a", seed=1), made("a", split="train"), made("a", split="validation")]
    assert len(set(once + [data for other in others for data in other])) == 8


def test_a_file_holds_the_moments_that_were_drawn(tmp_path):
    (item,) = ShapesBenchmark(str(tmp_path)).items(1)
    pixels, times = decode(item.path)
    drawn = render(clip_at("test", 0, 0))
    assert pixels.shape == drawn.shape
    assert times == [moment * 0.5 for moment in range(16)]
    difference = pixels.astype(float) - drawn
    blocks = difference.reshape(16, 32, 4, 32, 4, 3).mean(axis=(2, 4))
    assert np.abs(difference).mean() < 6
    assert np.abs(blocks).mean() < 2


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path):
    def fail(aside):
        aside.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        shapes.write_once(tmp_path / "clip.mp4", fail)
    assert files(tmp_path) == []


def test_the_first_writer_wins_and_its_file_stays_untouched(tmp_path):
    target = tmp_path / "clip.mp4"

    def overtaken(aside):
        target.write_text("first")
        aside.write_text("second")

    shapes.write_once(target, overtaken)
    assert target.read_text() == "first"
    assert files(tmp_path) == [target]


def test_clips_are_known_before_their_files_are_there(tmp_path):
    benchmark = ShapesBenchmark(str(tmp_path))
    expected = list(benchmark.expected_items(2))
    assert not list(tmp_path.iterdir())
    assert expected == list(benchmark.items(2))


def test_clips_are_asked_up_to_five_questions_of_different_types(tmp_path):
    items = list(ShapesBenchmark(str(tmp_path)).expected_items())
    assert len({item.video_id for item in items}) == len(items) == 200
    for item in items:
        kinds = [question.groups["type"] for question in item.questions]
        assert 5 >= len(set(kinds)) == len(kinds) >= 2
    types = Counter(q.groups["type"] for item in items for q in item.questions)
    assert set(types) == set(shapes.ASKED)
    assert min(types.values()) >= 60


def test_a_root_that_is_a_file_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ShapesBenchmark().generated_in.parent == tmp_path / "data" / "shapes"
    (tmp_path / "taken").write_text("")
    benchmark = ShapesBenchmark(str(tmp_path / "taken"))
    with pytest.raises(ValueError, match=r"benchmark\.root: cannot write to .*taken") as error:
        list(benchmark.items(1))
    assert "\n" not in str(error.value)


GENERATE = """
import sys
from tango_core.benchmarks import build_benchmark
for item in build_benchmark("shapes", root=sys.argv[1]).items(2):
    print(item.video_id)
"""


def test_processes_can_generate_the_same_clips_at_once(tmp_path):
    command = [sys.executable, "-c", GENERATE, str(tmp_path)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=os.getcwd())
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=120)[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert answers == [[f"test-0-{index:05d}" for index in range(2)]] * 3
    assert [path.name for path in files(tmp_path)] == [
        *(f"{index:05d}.mp4" for index in range(2)),
        "parameters.json",
    ]
    reference = list(ShapesBenchmark(str(tmp_path / "alone")).items(2))
    together = list(ShapesBenchmark(str(tmp_path)).items(2))
    for one, other in zip(reference, together, strict=True):
        assert Path(one.path).read_bytes() == Path(other.path).read_bytes()
