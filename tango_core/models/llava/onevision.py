"""LLaVA-OneVision: bilinear pooling and one newline after the clip.

lmms-eval shows this family the frames that VLMEvalKit shows it.
"""

from __future__ import annotations

from tango_core.models.llava.family import LlavaFamily, LlavaOptions

FAMILY = LlavaFamily(LlavaOptions)
