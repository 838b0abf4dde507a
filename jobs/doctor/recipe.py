"""What a recipe names: its model, its methods and the files of its benchmarks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.doctor.checks import Remark, note, ok, problem
from jobs.doctor.storage import place
from jobs.units import human_bytes

if TYPE_CHECKING:
    from jobs.config.recipe import BenchmarkSection, Job


def model(job: Job) -> Remark:
    """Load both halves of a model but for the values: names and shapes of all tensors are compared.

    Nothing of a large checkpoint is read but its small files and the headers of its weights.
    """
    from tango_core.models import load_encoder, load_language_model
    from tango_core.models.checkpoints.directory import Checkpoint, raise_if_damaged

    away = _to_download(job)
    if away:
        return _about_download(away)
    from jobs.run.build import model_of

    spec = model_of(job)
    raise_if_damaged(spec.path)
    for load in (load_encoder, load_language_model):
        load(spec, device="meta")
    text = f"{spec.name}, {spec.frames.num_frames} frames, {spec.dtype}, {spec.path}"
    if Path(spec.path).is_dir():
        files = Checkpoint(spec.path, Path(spec.path), None).weight_files()
        size = sum((Path(spec.path) / name).stat().st_size for name in files)
        text += f": {human_bytes(size)}, complete"
    return note(f"{text}; {spec.note}") if spec.note else ok(text)


def methods(job: Job, cache: str) -> Remark:
    """Build every method for the model: its options, its layers, the signals it needs."""
    from jobs.run.build import methods_of, model_of, raise_if_wrong_methods
    from pipeline.plan import build_cells
    from tango_core.video import decoder_versions

    raise_if_wrong_methods(job)
    unknown = note(f"{len(job.all_methods)}; whether the model can run them is not known yet")
    if _to_download(job):
        return unknown
    try:
        spec = model_of(job)
        decoder_versions(job.decode.decoder)
    except (ValueError, OSError):  # the line about the model or the decoder says why
        return unknown
    built, left_out = methods_of(job, spec)
    cells, _, caches = build_cells(built, spec, cache)
    text = f"{len(cells)} with {len(caches)} token cache(s)"
    if left_out:
        names = ", ".join(entry.name for entry in left_out)
        return note(f"{text}; left out, because the model has too few layers: {names}")
    return ok(text)


def benchmark(section: BenchmarkSection) -> Remark:
    """Find a benchmark's annotations; its videos are not looked at."""
    from jobs.run.build import benchmark_of

    opened = benchmark_of(section)
    if opened.generated_in is not None:
        remark = place(str(opened.generated_in), "benchmark.root")
        return Remark(remark.mark, f"{section.name}, generated in {remark.text}")
    split = "" if section.split == "test" else f" --split {section.split}"
    return ok(
        f"{section.name} in {section.root}; look at every file with "
        f"`tango data check {section.name} {section.root}{split}`"
    )


def _to_download(job: Job) -> list[str]:
    """Hub checkpoints of the recipe that are not on this machine."""
    from tango_core.models import MODELS
    from tango_core.models.checkpoints.directory import is_here

    section = job.model
    entry = MODELS.get(section.name)
    named = (
        (section.path or (entry.path if entry else None), section.revision),
        (section.saliency_from, None),
    )
    return [source for source, revision in named if source and not is_here(source, revision)]


def _about_download(sources: list[str]) -> Remark:
    """A note, or a problem where the hub may not be asked."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    names = " and ".join(sources)
    commands = " and ".join(f"`hf download {source}`" for source in sources)
    if HF_HUB_OFFLINE:
        return problem(
            f"{names} is not on this machine and HF_HUB_OFFLINE="
            f"{os.environ.get('HF_HUB_OFFLINE', '1')} forbids to fetch it; run {commands} where "
            "there is a network, and give the directory as model.path"
        )
    return note(f"{names} will be downloaded; {commands} does so now")
