"""Paths and names of a command line, checked before models and videos are loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.storage.urls import Place, is_url, place, raise_if_secret
from tango_core.errors import InputError, MissingFileError

if TYPE_CHECKING:
    from jobs.config.recipe import Job
    from jobs.config.sections import BenchmarkSection
    from tango_core.extensions import Kind


def check_places(output: Place, resume: str | None = None, cache: str | None = None) -> None:
    """Refuse directories that cannot be written to, and a run that is not there.

    Args:
        output: Directory of all runs.
        resume: Run to continue, as a path or a name inside `output`.
        cache: Directory or URL of the token caches, if it is not inside `output`.

    Raises:
        ValueError: In one line that names the option.
    """
    from jobs.results.facts import JOB_FILE
    from jobs.run.locations import raise_if_unusable

    raise_if_unusable(output)
    if cache is not None and "://" not in cache:
        raise_if_unusable(Path(cache), "--cache")
    if resume is not None and not any(
        not isinstance(path, Path) or (path / JOB_FILE).is_file()
        for path in (place(resume), output / resume)
    ):
        from jobs.run.run_dirs import no_run

        raise no_run(resume, output)


def check_options(method: str, retention: float | None, options: Mapping[str, Any]) -> None:
    """Refuse a method or an option of it that does not exist, before a model is loaded.

    Args:
        method: Its name.
        retention: `None` for the default of methods that take one.
        options: Its other options.
    """
    from jobs.config.methods import raise_if_wrong_methods
    from tango_core.compressors import METHODS
    from tango_core.compressors.options import option_names

    given = dict(options)
    if retention is not None:
        given["retention"] = retention
    elif method in METHODS and "retention" in option_names(METHODS[method]):
        given["retention"] = 0.1
    raise_if_wrong_methods([(method, {"name": method, **given})])


def _check_section(section: BenchmarkSection, model: str) -> None:
    """Refuse what a benchmark of this package does not have; no file is opened."""
    from tango_core.benchmarks import benchmark_class
    from tango_core.models import MODELS

    found = benchmark_class(section.name)
    found.check_names(section.split, section.protocol)
    wording = MODELS[model].load_family().wording if model in MODELS else None
    found.check_subtitles(section.subtitles, section.protocol, wording)


def check_names(jobs: Sequence[Job]) -> None:
    """Refuse wrong names and options of a job that runs on another machine.

    Paths are those of that machine. Classes named as `module:attribute` are left to it too, because
    they may be installed there alone.

    Args:
        jobs: What the recipe stands for.

    Raises:
        ValueError: In one line that names the setting.
    """
    from jobs.config.methods import raise_if_wrong_methods
    from tango_core.benchmarks import BENCHMARKS, build_benchmark
    from tango_core.extensions import is_reference

    for job in jobs:
        for section in job.all_benchmarks:
            if section.name in BENCHMARKS:
                _check_section(section, job.model.name)
            elif not _is_known("benchmark", section.name, BENCHMARKS):
                build_benchmark(section.name)
        check_model(job.model.name, None)
        methods = (one for one in job.all_methods if not is_reference(one[1]["name"]))
        raise_if_wrong_methods(methods)


def check_model(name: str, path: str | None) -> None:
    """Refuse a model that has no such name, and a checkpoint directory that is not there."""
    from tango_core.models import MODELS, describe_model

    if not _is_known("model", name, MODELS):
        describe_model(name, path)
    if path is not None and (Path(path).is_dir() or path.startswith(("/", ".", "~"))):
        from tango_core.models.checkpoints.directory import resolve_checkpoint

        resolve_checkpoint(path).config()


def check_runs(runs: Sequence[Place]) -> None:
    """Refuse a directory that is not a finished run, or whose facts are damaged."""
    from jobs.results.facts import JobFacts

    for run in runs:
        if isinstance(run, Path):  # asking a store takes a connection
            JobFacts.load(run)


def check_video(video: str) -> None:
    """Refuse a video that is not there, and a file that holds none; no frame is decoded."""
    if is_url(video):
        place(video)
        return
    if not _is_there(video):
        raise MissingFileError(f"video {video}: no such file or directory")
    path = Path(os.path.expanduser(video))
    if path.is_dir():
        from tango_core.video.folder import list_images

        if not list_images(path):
            raise InputError(
                f"video {video}: the directory holds no images, which would be the frames of one "
                "video; name a video file, such as one in it"
            )
    elif path.is_file() and path.stat().st_size == 0:
        raise InputError(f"video {video}: the file is empty (0 bytes); copy it again")
    else:  # a FIFO or a device is refused there, too
        from tango_core.video.container import opened

        with opened(str(path)):
            pass


def check_cache_root(root: str) -> None:
    """Refuse a directory of token caches that is not there."""
    raise_if_secret(root)
    if not _is_there(root):
        from pipeline.cache.folders import find_caches

        find_caches(root)


def _is_known(kind: Kind, name: str, table: Collection[str]) -> bool:
    """Whether a name is in the table of this project, or may be one from outside."""
    from tango_core.extensions import announced, is_reference

    return name in table or is_reference(name) or name in announced(kind)


def _is_there(path: str | None) -> bool:
    """Whether a local path exists; a URL counts as there, because asking takes a connection."""
    return path is not None and ("://" in path or os.path.exists(os.path.expanduser(path)))
