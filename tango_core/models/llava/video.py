"""LLaVA-Video: LLaVA-OneVision with a newline after every grid row and a sentence about time.

Its publications evaluate it with 2 x 2 average pooling (27 x 27 to 13 x 13), although the
checkpoint's config.json says bilinear and users have matched other published scores only with
that; hence the option `pooling`. The default of `time_instruction` is VLMEvalKit's sentence, with
which the published accuracies of the pruning methods were measured.
"""

from __future__ import annotations

from tango_core.models.llava.family import LlavaFamily, LlavaVideoOptions

FAMILY = LlavaFamily(
    LlavaVideoOptions,
    # `llava_vid` of lmms-eval, by its defaults (`force_sample` and `add_time_instruction` are off).
    harness={"lmms_eval": {"sampling": "per_second", "time_instruction": "none"}},
)
