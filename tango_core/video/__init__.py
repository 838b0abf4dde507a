"""Video files to frames: sampling rules, sizes, decoders.

Imports `tango_core.types` only, and neither torch nor ray: decode workers stay small. A new decoder
is a module and a line in `decode.py` and in `frame_spec.py`.
"""

from tango_core.video.container import DecoderUnavailableError, VideoDecodeError
from tango_core.video.decode import decode_frames, decoder_versions, resize
from tango_core.video.frame_spec import DECODERS, DecoderName, FrameSpec

__all__ = [
    "DECODERS",
    "DecoderName",
    "DecoderUnavailableError",
    "FrameSpec",
    "VideoDecodeError",
    "decode_frames",
    "decoder_versions",
    "resize",
]
