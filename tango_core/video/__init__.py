"""From a video file to frames: sampling rules, size, choice of decoder (`readers/`).

Imports `tango_core.types` only, and neither torch nor ray: decode workers stay small. A new decoder
is a module in `readers/` and a line in `decode.py`.
"""

from tango_core.video.decode import (
    DECODERS,
    DecoderName,
    FrameSpec,
    decode_frames,
    decoder_versions,
    probe,
    resize,
)
from tango_core.video.readers.errors import DecoderUnavailableError, VideoDecodeError
from tango_core.video.readers.probe import VideoInfo

__all__ = [
    "DECODERS",
    "DecoderName",
    "DecoderUnavailableError",
    "FrameSpec",
    "VideoDecodeError",
    "VideoInfo",
    "decode_frames",
    "decoder_versions",
    "probe",
    "resize",
]
