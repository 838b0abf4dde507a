"""One module per way to get frames out of a video; `tango_core.video.decode` chooses between them.

`container.py` opens a file, `probe.py` indexes its packets, `extent.py` says which frames a clip
has; `pyav.py`, `decord.py`, `torchcodec.py` and `folder.py` (images) decode. They import a decoding
library only when used, and of this package only each other and `tango_core.video.sampling`.
"""
