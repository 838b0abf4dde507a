"""What `vllm serve` loads into each of its processes (entry point of `vllm.general_plugins`).

It does nothing in processes that `tango serve` did not start.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from jobs.serve.clips import ServedClips

FOLDER = "TANGO_VIDEO_SERVED"
"""Environment variable with the directory that `jobs.serve.command.write_folder` wrote."""
MODE = "tango_video"
"""Name of the renderer, and of the tokenizer mode that chooses it."""


def register() -> None:
    """Add the model classes, the reader of weights and the renderer of `tango serve` to vLLM."""
    if FOLDER not in os.environ:
        return
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers.registry import TokenizerRegistry

    from tango_core.models.language.vllm_engine import register_loader

    register_loader(lambda: served_clips().engine.weights)
    TokenizerRegistry.register(MODE, "vllm.tokenizers.hf", "CachedHfTokenizer")
    RENDERER_REGISTRY.register(MODE, "jobs.serve.vllm_renderer", "ClipRenderer")


@cache
def served_clips() -> ServedClips:
    """The clips of this process's server."""
    from jobs.serve.command import open_folder

    return open_folder(Path(os.environ[FOLDER]))
