"""Shapes, the embedded world: clips that are generated when needed, without a download.

`world.py` says what a clip consists of and draws one at random, `render.py` makes its pixels,
`questions.py` its questions and which tokens answer them, `benchmark.py` its file. Imports numpy
and PyAV. A new type of question goes into `questions.py`; whatever moves a pixel or a question must
raise `WORLD_VERSION`.
"""
