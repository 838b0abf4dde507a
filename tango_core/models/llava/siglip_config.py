"""The configuration of the SigLIP tower of the LLaVA models.

Describing a model must not load the code of its networks, so this is not in `siglip`.
"""

from __future__ import annotations

from transformers import SiglipVisionConfig

from tango_core.models.checkpoints.directory import Checkpoint

SIGLIP_OF_LLAVA = "google/siglip-so400m-patch14-384"


def siglip_config(checkpoint: Checkpoint) -> SiglipVisionConfig:
    """The vision configuration of a SigLIP checkpoint, whole or vision only.

    Raises:
        ValueError: If it is something else.
    """
    content = checkpoint.config()
    vision = content.get("vision_config", content)
    kinds = ("siglip", "siglip_vision_model")
    if content.get("model_type") not in kinds and vision.get("model_type") not in kinds:
        raise ValueError(
            f"{checkpoint.setting} {checkpoint.source} holds a {content.get('model_type')!r} "
            f"model, not SigLIP; give a directory or hub id such as {SIGLIP_OF_LLAVA}"
        )
    return SiglipVisionConfig.from_dict(dict(vision))
