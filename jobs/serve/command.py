"""`tango serve`: write what the server needs to a directory, print the command and run it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobs.config.recipe import Job
from jobs.serve.clips import SCHEME, ServedClips, open_clips
from jobs.serve.vllm_plugin import CACHE, FOLDER, MODE, RECIPE
from tango_core.models.language.vllm_engine import LOAD_FORMAT


def serve(job: Job, root: str, arguments: Sequence[str], *, dry_run: bool) -> int:
    """Run `vllm serve` until it ends; returns its exit code.

    Args:
        job: The recipe: a model and methods.
        root: Directory or URL of the token caches.
        arguments: Further arguments of `vllm serve`.
        dry_run: Only print the command.

    Raises:
        InputError: If vLLM is missing or cannot serve the recipe.
    """
    environment = dict(os.environ)  # without the settings of an engine in this process
    with tempfile.TemporaryDirectory(prefix="tango-serve-") as name:
        folder = Path(name)
        clips = write_folder(folder, replace(job, engine="vllm"), root)
        line = command_line(folder, clips, arguments)
        print(f"{FOLDER}={folder} {shlex.join(line)}")
        for method in clips.methods:
            print(f"  {SCHEME}KEY/{method}")
        sys.stdout.flush()
        if dry_run:
            return 0
        environment[FOLDER] = name
        with subprocess.Popen(line, env=environment) as server:
            try:
                return server.wait()
            finally:
                server.terminate()


def write_folder(folder: Path, job: Job, root: str) -> ServedClips:
    """Write the recipe, the configuration and the tokenizer of a server.

    Args:
        folder: An existing directory.
        job: The recipe with `engine: vllm`.
        root: Directory or URL of the token caches.
    """
    root = root if "://" in root else str(Path(root).absolute())
    clips = open_clips(job, root)
    engine = clips.engine
    (folder / RECIPE).write_text(job.to_yaml(), encoding="utf-8")
    (folder / CACHE).write_text(root, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(engine.config), encoding="utf-8")
    # Replies end and are chosen as in a job, unless a request says otherwise.
    ends = {"eos_token_id": sorted(engine.eos_ids), "temperature": 0.0}
    (folder / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    clips.layout.tokenizer.save_pretrained(folder)
    return clips


def command_line(folder: Path, clips: ServedClips, arguments: Sequence[str]) -> list[str]:
    """`vllm serve` with everything that this package adds to it."""
    fixed = {
        "load_format": LOAD_FORMAT,
        "tokenizer_mode": MODE,
        "served_model_name": clips.spec.name,
        "dtype": clips.spec.dtype,
        "enable_prefix_caching": True,
        **clips.engine.memory_arguments(),
        **clips.engine.route_arguments(),
    }
    line = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
    for option, value in fixed.items():
        flag = f"--{option.replace('_', '-')}"
        if value is True:
            line.append(flag)
        elif value is not False:
            line += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return [*line, *arguments]
