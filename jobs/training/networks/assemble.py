"""Copy the trained parts into a LLaVA-OneVision of transformers."""

from __future__ import annotations

import torch
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from jobs.training.networks.joint import JointTrainer
from jobs.training.networks.vision import VisionTrainer


@torch.no_grad()
def assemble(
    config: LlavaOnevisionConfig, vision: VisionTrainer, joint: JointTrainer
) -> LlavaOnevisionForConditionalGeneration:
    """Build the whole model from its trained parts; heads that only training needs are dropped."""
    whole = LlavaOnevisionForConditionalGeneration(config)
    whole.model.vision_tower.load_state_dict(vision.tower.state_dict())
    whole.model.multi_modal_projector.load_state_dict(joint.projector.state_dict())
    whole.model.language_model.load_state_dict(joint.decoder.language_model.state_dict())
    whole.model.image_newline.copy_(joint.decoder.image_newline)
    whole.tie_weights()
    return whole.eval()
