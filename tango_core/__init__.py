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

_HOME = {
    "tango_core.ask": ("VideoAnswer", "VideoChat"),
    "tango_core.combination": ("Combination", "Drawing"),
    "tango_core.latency": ("LatencyProfile",),
    "tango_core.types": (
        "Answer",
        "CompressedVideo",
        "Prompt",
        "Question",
        "VideoFrames",
        "VideoItem",
        "VisualFeatures",
    ),
    "tango_core.compressors": ("METHODS", "Method", "build_method"),
    "tango_core.models": ("MODELS", "describe_model", "load_encoder", "load_language_model"),
    "tango_core.video": ("FrameSpec", "decode_frames"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

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
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tango_core' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
