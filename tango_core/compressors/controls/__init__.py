"""Controls: cheaper ways to have fewer tokens, which a pruning method must beat.

What lives here: `fewer_frames.py`, `pool_time.py`, `pool_space.py` and `block.py`, one compressor
each; `frames.py` is what the first two share. `random` and `uniform` beside this folder are
controls, too. The question is VTC-Bench's (arXiv 2510.07143), which asks it of images; the
definitions for video are this project's.

Controls keep whole frames or grids, so they meet a retention only to the nearest such count;
reports show what they really keep.

May import: what `tango_core.compressors` may.
"""
