"""Data of a clip: token sets, frames, and reasons for missing ones."""

from __future__ import annotations

import base64
import io
import shutil

import numpy as np
import pytest
from clips import clip as clip_file
from PIL import Image
from viewed_runs import CELLS, FRAMES, GRID, HOSTILE, OLD, features_of, write_viewed_run

from jobs.viewer.command import opened
from jobs.viewer.frames import FrameDecoder, NotShownError, View, nearest_to
from jobs.viewer.tokens import ONLY_POSITIONS
from tango_core.compressors import build_method


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_viewed_run(tmp_path_factory.mktemp("run"), video=clip_file("closed_gop.mp4"))


@pytest.fixture(scope="module")
def pages(run):
    with opened([run]) as pages:
        yield pages


@pytest.fixture(scope="module")
def decoder():
    decoder = FrameDecoder(pixels=4_000)
    yield decoder
    decoder.close()


def unpacked(text, kind):
    return None if text is None else np.frombuffer(base64.b64decode(text), kind)


def test_a_clip_has_questions_options_answers_and_times(pages):
    page = pages.clip(1)
    first = page["questions"][0]
    assert first["text"] == f"What is it, {HOSTILE}?"
    assert first["choices"] == ["red", "Blue", HOSTILE]
    assert first["answer"] == 1
    assert dict(first["groups"]) == {"type": "shape", "half": "b"}
    reply = first["answers"]["1"]
    assert reply["text"].startswith("reply tango r=0.25 ")
    assert (reply["prefill_ms"], reply["tokens_kept"], reply["prompt_tokens"]) == (12.5, 12, 60)
    failed = pages.clip(2)["questions"][0]["answers"]["0"]
    assert (failed["status"], failed["error"]) == ("decode_failed", "decode: it is broken")


def test_drawings_equal_the_plans_of_the_methods(pages):
    drawn = pages.tokens(0, 1).sets[0]
    plan = build_method("tango", retention=0.25).compressor.plan(features_of(0))
    assert drawn.missing == ()
    assert drawn.plan.drawing.segments == plan.drawing.segments
    packed = drawn.to_json()
    assert unpacked(packed["kept"], packed["index_type"]).tolist() == plan.indices.tolist()
    assert unpacked(packed["weights"], "<f4").tolist() == plan.weights.tolist()
    assert unpacked(packed["sources"], packed["index_type"]).tolist() == plan.sources.tolist()
    assert unpacked(packed["static"], "u1").tolist() == plan.drawing.static.flatten().tolist()
    assert unpacked(packed["saliency"], "u1").tolist() == plan.drawing.saliency.flatten().tolist()
    assert packed["grid"] == [FRAMES, *GRID]


def test_tokens_of_an_unknown_method_name_the_missing_setting(pages):
    old = pages.tokens(0, CELLS.index(OLD)).sets[0]
    assert old.missing == (ONLY_POSITIONS,)
    assert "cache.features: all" in ONLY_POSITIONS
    assert old.plan.num_kept == 12


def test_missing_clips_and_missing_caches_have_different_reasons(run, tmp_path):
    with opened([run]) as pages, pytest.raises(NotShownError, match="does not hold this clip"):
        pages.tokens(3, 0)
    where = f"is not in {tmp_path}. Name its directory with --cache"
    with opened([run], cache=str(tmp_path)) as pages, pytest.raises(NotShownError, match=where):
        pages.tokens(0, 0)


def test_a_damaged_cache_entry_is_reported_and_kept(run, tmp_path):
    shutil.copytree(run.parent, tmp_path / "copy")
    (cache,) = (tmp_path / "copy/cache").glob("*features*")
    for entry in cache.glob("*.parquet"):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 0xFF
        entry.write_bytes(bytes(data))
    with (
        opened([tmp_path / "copy/run"], cache=str(tmp_path / "copy/cache")) as pages,
        pytest.raises(NotShownError, match="damaged"),
    ):
        pages.tokens(0, 1)
    assert len(list(cache.glob("*.parquet"))) == 4, "who looks on removes nothing"


def test_pictures_show_the_frames_of_the_video(pages, decoder):
    views = {pages.tokens(0, column).view for column in range(len(CELLS))}
    assert len(views) == 1
    (picture,) = decoder.sprites(views.pop())
    image = Image.open(io.BytesIO(picture))
    assert image.height % FRAMES == 0
    frames = np.asarray(image).reshape(FRAMES, -1, image.width, 3).astype(float)
    assert image.width * image.height / FRAMES <= 4_000
    # The video counts its frames, so no two of them are alike.
    assert all(abs(frames[at] - frames[at + 1]).mean() > 1 for at in range(FRAMES - 1))


def test_repeated_frames_belong_to_their_own_times():
    assert nearest_to(np.arange(8.0), np.array([0.2, 2.6, 6.9])).tolist() == [0, 3, 7]
    repeated = np.array([0.0, 0.0, 1.0])
    assert nearest_to(repeated, repeated).tolist() == [0, 1, 2]


def test_a_missing_video_is_named(decoder):
    with pytest.raises(NotShownError, match=r"cannot be decoded: .*nowhere/x\.mp4"):
        decoder.sprites(View("/nowhere/x.mp4", None, "", '{"num_frames": 4}', (0.0,)))
