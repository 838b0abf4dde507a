"""Training-free video-token pruning for Video LLMs: the core, usable with torch alone.

    from tango_core import build_method, decode_frames, load_encoder, load_language_model

Names are imported when first used, so that a process that only decodes video never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tango_core.ask import VideoAnswer, VideoChat
    from tango_core.combination import Combination, Drawing
    from tango_core.compressors import METHODS, Method, build_method
    from tango_core.latency import LatencyProfile
    from tango_core.models import MODELS, describe_model, load_encoder, load_language_model
    from tango_core.types import (
        Answer,
        CompressedVideo,
        Prompt,
        Question,
        VideoFrames,
        VideoItem,
        VisualFeatures,
    )
    from tango_core.video import FrameSpec, decode_frames

__version__ = "0.2.0"

# Modules that hold the public names; the first ones load no torch.
_HOMES = ("types", "video", "combination", "compressors", "latency", "models", "ask")

__all__ = [
    "METHODS",
    "MODELS",
    "Answer",
    "Combination",
    "CompressedVideo",
    "Drawing",
    "FrameSpec",
    "LatencyProfile",
    "Method",
    "Prompt",
    "Question",
    "VideoAnswer",
    "VideoChat",
    "VideoFrames",
    "VideoItem",
    "VisualFeatures",
    "build_method",
    "decode_frames",
    "describe_model",
    "load_encoder",
    "load_language_model",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'tango_core' has no attribute {name!r}")
    homes = (import_module(f"tango_core.{home}") for home in _HOMES)
    return next(getattr(home, name) for home in homes if hasattr(home, name))
