"""One file per way to get frames out of a video; `tango_core.video.decode` chooses between them."""
