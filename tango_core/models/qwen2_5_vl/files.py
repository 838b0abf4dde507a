"""Reads the files of Qwen2.5-VL checkpoints."""

from __future__ import annotations

import re

from tango_core.models.files import PatchFiles
from tango_core.models.language.chat import QWEN2_5_VL


class QwenFiles(PatchFiles):
    """Flat as on the hub, or nested as transformers 5 names its modules; pixels as CLIP's.

    A frame has at least 128 tokens (qwen-vl-utils' default for video) and at most 256: 448 x 448
    pixels, the publication's "maximum frame resolution of 448".
    """

    model_type, title = "qwen2_5_vl", "Qwen2.5-VL"
    kinds = repr(model_type)
    chat = QWEN2_5_VL
    mean = (0.48145466, 0.4578275, 0.40821073)
    std = (0.26862954, 0.26130258, 0.27577711)
    renames = (
        (re.compile(r"^visual\."), "model.visual."),
        (re.compile(r"^model\.(?!language_model\.|visual\.)"), "model.language_model."),
    )
    least_tokens, most_tokens = 128, 256


FILES = QwenFiles()
