"""The viewer on runs of other model families, with grids that are not square."""

from __future__ import annotations

import io
import json

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
    decoder = FrameDecoder(pixels=20_000)
    try:
        with opened([folder]) as pages:
            found = [pages.tokens(0, column) for column in (0, 1)]
            view = found[0].view
            pictures = decoder.sprites(view)
            drawings = [one.drawing for one in found]
    finally:
        decoder.close()
    for drawing, cell in zip(drawings, ("full", "tango r=0.25"), strict=True):
        time, height, width = drawing.plan.grid
        assert drawing.missing == ()
        assert drawing.plan.num_kept == kept[cell]["tokens_kept"]
        assert time * height * width == kept[cell]["tokens_total"]
        assert time * FAMILIES[name][2] == SMALL["num_frames"]
        assert len(view.times) == time
        if name != INTERNVL:  # one square tile
            assert width > height
    picture = Image.open(io.BytesIO(pictures[0]))
    shape = picture.height / min(PER_SPRITE, len(view.times)) / picture.width
    with Image.open(io.BytesIO(pictures[0])) as one:
        assert np.asarray(one).std() > 5
    assert shape == pytest.approx(first_frame_shape(), rel=0.1)
    with ClipPanels(folder) as panels:
        figure = panels.figure(("custom", kept["full"]["video_id"]), ["full", "tango r=0.25"])
    assert figure.startswith("<figure")
    assert figure.count("<img ") == 2 * min(4, len(view.times))
    assert "cannot" not in figure


def first_frame_shape():
    """Height over width of the clip."""
    import av

    with av.open(str(clip_file("closed_gop.mp4"))) as file:
        stream = file.streams.video[0]
        return stream.height / stream.width
