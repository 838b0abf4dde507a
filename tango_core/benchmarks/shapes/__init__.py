"""Shapes, the embedded world: clips that are generated when needed, without a download.

`world.py` says what a clip consists of, `draw.py` draws one at random, `render.py` (with
`backgrounds.py`) makes its pixels, `video.py` its file, `questions.py` its questions. Imports numpy
and PyAV. A new type of question goes into `questions.py`; whatever moves a pixel or a question must
raise `WORLD_VERSION`.
"""
