"""What can be wrong with a video or with the library that should read it."""

from tango_core.errors import InputError


class VideoDecodeError(InputError):
    """A video cannot be decoded; the message is one line that names the file and the reason."""


class DecoderUnavailableError(InputError):
    """The decoder that was asked for is not installed; the message says what to install."""


class ReaderError(VideoDecodeError):
    """One way of reading a file failed; another one may still succeed."""
