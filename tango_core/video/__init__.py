"""Video files to frames: sampling rules, sizes, decoders.

Imports neither torch nor ray: decode workers stay small. A new decoder is a `FrameReader`, a branch
in `decode.py` and a name in `sampling.py`.
"""

from tango_core.video.decode import decode_frames, decoder_versions
from tango_core.video.reader import DecoderUnavailableError, VideoDecodeError
from tango_core.video.sampling import DecoderName, FrameSpec

__all__ = [
    "DecoderName",
    "DecoderUnavailableError",
    "FrameSpec",
    "VideoDecodeError",
    "decode_frames",
    "decoder_versions",
]
