"""The model, the methods and the benchmark files that a recipe names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.doctor.checks import CheckResult, note, ok, problem
from jobs.doctor.storage import writable
from jobs.units import human_bytes

if TYPE_CHECKING:
    from jobs.config.recipe import Job
    from jobs.config.sections import BenchmarkSection


def model(job: Job) -> CheckResult:
    """Load encoder and language model on the device `meta`: names and shapes of tensors must fit.

    Of a checkpoint only the small files and the headers of the weight files are read.
    """
    from tango_core.models import load_encoder, load_language_model
    from tango_core.models.checkpoints.directory import Checkpoint, raise_if_damaged

    missing = _missing_checkpoints(job)
    if missing:
        return _download_result(missing)
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


def methods(job: Job, cache: str) -> CheckResult:
    """Build every method for the model; this checks its options, layers and signals."""
    from jobs.config.methods import raise_if_wrong_methods
    from jobs.run.build import methods_of, model_of
    from pipeline.methods import plan_methods
    from tango_core.video import decoder_versions

    raise_if_wrong_methods(job.all_methods)
    unknown = note(f"{len(job.all_methods)}; not checked: model or decoder is missing")
    try:
        if _missing_checkpoints(job):
            return unknown
        spec = model_of(job)
        decoder_versions(job.decode.decoder)
    except (ValueError, OSError):  # the check of the model or the decoder reports it
        return unknown
    built, skipped = methods_of(job, spec)
    planned, _, caches = plan_methods(built, spec, cache)
    text = f"{len(planned)} with {len(caches)} token cache(s)"
    if skipped:
        names = ", ".join(entry.name for entry in skipped)
        return note(f"{text}; skipped, because the model has too few layers: {names}")
    return ok(text)


def benchmark(section: BenchmarkSection, video_cache: str = "~/.cache/tango-video") -> CheckResult:
    """Open a benchmark's annotations; its video files are not checked."""
    from jobs.run.build import benchmark_of, mirror_of

    mirror = mirror_of(section, video_cache)
    opened = benchmark_of(section, mirror)
    if mirror is not None:
        return ok(f"{section.name} in {section.root}, {len(mirror.objects)} objects")
    if opened.generated_in is not None:
        result = writable(str(opened.generated_in), "benchmark.root")
        return CheckResult(result.status, f"{section.name}, generated in {result.text}")
    split = "" if section.split == "test" else f" --split {section.split}"
    return ok(
        f"{section.name} in {section.root}; check every file with "
        f"`tango data check {section.name} {section.root}{split}`"
    )


def _missing_checkpoints(job: Job) -> list[tuple[str, str | None]]:
    """Hub checkpoints of the recipe that are not on this machine, each with its revision."""
    from tango_core.models import model_entry
    from tango_core.models.checkpoints.directory import is_here

    section = job.model
    sources = (
        (section.path or model_entry(section.name).path, section.revision),
        (section.saliency_from, None),
    )
    return [
        (source, revision)
        for source, revision in sources
        if source and not is_here(source, revision)
    ]


def _download_result(missing: list[tuple[str, str | None]]) -> CheckResult:
    """A note, or a problem if the hub will not give them, or `HF_HUB_OFFLINE` forbids to ask it."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    names = " and ".join(source for source, _ in missing)
    commands = " and ".join(f"`tango model get {source}`" for source, _ in missing)
    if HF_HUB_OFFLINE:
        return problem(
            f"{names} is not on this machine and HF_HUB_OFFLINE="
            f"{os.environ.get('HF_HUB_OFFLINE', '1')} forbids the download; run {commands} where "
            "there is a network, and set model.path to the directory"
        )
    for source, revision in missing:
        _ask_hub(source, revision)
    return note(f"{names} will be downloaded, and the hub gives it; {commands} does so now")


def _ask_hub(source: str, revision: str | None) -> None:
    """Ask the hub for a checkpoint's configuration, once and without its content.

    Raises:
        FetchError: If it does not give it.
    """
    from jobs.fetch.hub import Repository

    Repository(source, "model", revision or "main").raise_if_closed("config.json")
