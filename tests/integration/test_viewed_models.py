"""The viewer on runs of other model families, with grids that are not square."""

from __future__ import annotations

import io
import json
from contextlib import closing

import av
import numpy as np
import pytest
from clips import clip as clip_file
from internvl_checkpoints import NAME as INTERNVL
from internvl_checkpoints import build_internvl, save_internvl
from jobs_for_tests import answers_of, run
from PIL import Image
from qwen3_checkpoints import NAME as QWEN3
from qwen3_checkpoints import build_qwen3, save_qwen3
from qwen_checkpoints import build_qwen, save_qwen

from jobs.config.recipe import parse_job
from jobs.viewer.command import opened
from jobs.viewer.frames import PER_SPRITE, FrameDecoder
from jobs.viewer.panels import ClipPanels

QWEN = "qwen2.5-vl-7b"
SMALL = {"num_frames": 6, "max_pixels": 8000, "min_pixels": 64}
METHODS = [{"name": "full"}, {"name": "tango", "retention": 0.25}]
# Name -> how its checkpoint is made, options, frames of the model per place in time of its grid.
FAMILIES = {
    QWEN: (lambda folder: save_qwen(build_qwen(), folder), {**SMALL, "min_pixels": None}, 2),
    QWEN3: (lambda folder: save_qwen3(build_qwen3(), folder), SMALL, 2),
    INTERNVL: (
        lambda folder: save_internvl(build_internvl(), folder, "saved"),
        {"num_frames": 6},
        1,
    ),
}


def finished_run(name, folder):
    """A run of a family on one clip that is wider than high."""
    save, options, _ = FAMILIES[name]
    table = folder / "questions.jsonl"
    row = {
        "video": str(clip_file("closed_gop.mp4")),
        "question": "What is it?",
        "options": ["red", "blue"],
        "answer": "A",
    }
    table.write_text(json.dumps(row) + "\n")
    model = {key: value for key, value in options.items() if value is not None}
    recipe = {
        "benchmark": {"name": "custom", "root": str(table)},
        "model": {"name": name, "path": str(save(folder / "checkpoint")), **model},
        "methods": METHODS,
        "cache": {"features": "all"},
        "executor": "local",
    }
    return run(parse_job(recipe, "test"), folder / "runs")[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_are_drawn_over_the_frames_of_the_model(name, tmp_path):
    folder = finished_run(name, tmp_path)
    kept = {row["cell"]: row for row in answers_of(folder).to_dict("records")}
    with opened([folder]) as pages, closing(FrameDecoder(pixels=20_000)) as decoder:
        found = [pages.tokens(0, column) for column in (0, 1)]
        times = found[0].view.times
        picture = Image.open(io.BytesIO(decoder.sprites(found[0].view)[0]))
    for one, cell in zip(found, ("full", "tango r=0.25"), strict=True):
        time, height, width = one.sets[0].plan.grid
        assert one.sets[0].missing == ()
        assert one.sets[0].plan.num_kept == kept[cell]["tokens_kept"]
        assert time * height * width == kept[cell]["tokens_total"]
        assert len(times) == time == SMALL["num_frames"] // FAMILIES[name][2]
        assert name == INTERNVL or width > height, "one square tile, or as wide as the clip"
    assert np.asarray(picture).std() > 5
    with av.open(str(clip_file("closed_gop.mp4"))) as file:
        clip = file.streams.video[0]
        frames = min(PER_SPRITE, len(times))
        shape = picture.height / frames / picture.width
        assert shape == pytest.approx(clip.height / clip.width, rel=0.1)
    with ClipPanels(folder) as panels:
        figure = panels.figure(("custom", kept["full"]["video_id"]), ["full", "tango r=0.25"])
    assert figure.startswith("<figure")
    assert figure.count("<img ") == 2 * min(4, len(times))
    assert "cannot" not in figure
