"""What `vllm serve` loads into each of its processes (entry point of `vllm.general_plugins`).

It does nothing in processes that `tango serve` did not start.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import yaml

from jobs.config.recipe import parse_job
from jobs.serve.clips import ServedClips, open_clips

FOLDER = "TANGO_VIDEO_SERVED"
"""Environment variable with the directory that `jobs.serve.command.write_folder` wrote."""
RECIPE, CACHE = "recipe.yaml", "cache.txt"
"""Its files: the recipe, and the directory or URL of the token caches."""
MODE = "tango_video"
"""Name of the renderer, and of the tokenizer mode that chooses it."""


def register() -> None:
    """Add the model classes, the reader of weights and the renderer of `tango serve` to vLLM."""
    if FOLDER not in os.environ:
        return
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers.registry import TokenizerRegistry

    from tango_core.models.language.vllm_engine import register_loader
    from tango_core.models.language.vllm_qwen import register as register_models

    register_models()
    register_loader(lambda: served_clips().engine.weights)
    TokenizerRegistry.register(MODE, "vllm.tokenizers.hf", "CachedHfTokenizer")
    RENDERER_REGISTRY.register(MODE, "jobs.serve.vllm_renderer", "ClipRenderer")


@cache
def served_clips() -> ServedClips:
    """The clips of this process's server."""
    folder = Path(os.environ[FOLDER])
    content = yaml.safe_load((folder / RECIPE).read_text(encoding="utf-8"))
    job = parse_job(content, str(folder / RECIPE))
    return open_clips(job, (folder / CACHE).read_text(encoding="utf-8"))
