"""From a video file to frames: sampling rules, size, choice of decoder (`readers/`).

Imports `tango_core.types` only, and neither torch nor ray: decode workers stay small. A new decoder
is a module in `readers/` and a line in `decode.py` and in `frame_spec.py`.
"""

from tango_core.video.decode import decode_frames, decoder_versions, probe, resize
from tango_core.video.frame_spec import DECODERS, DecoderName, FrameSpec
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
