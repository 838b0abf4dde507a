"""Put the trained parts into a stock LLaVA-OneVision, and the stock model into a directory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from jobs.training.decoder import DecoderTrainer
from jobs.training.vision import VisionTrainer
from tango_core.benchmarks.shapes.benchmark import VOCABULARY
from tango_core.models.tiny import save_tiny


@torch.no_grad()
def assemble(
    config: LlavaOnevisionConfig, vision: VisionTrainer, projector: nn.Module, text: DecoderTrainer
) -> LlavaOnevisionForConditionalGeneration:
    """Build the whole model from its trained parts; read-outs of training are left behind."""
    whole = LlavaOnevisionForConditionalGeneration(config)
    whole.model.vision_tower.load_state_dict(vision.tower.state_dict())
    whole.model.multi_modal_projector.load_state_dict(projector.state_dict())
    whole.model.language_model.load_state_dict(text.language_model.state_dict())
    whole.model.image_newline.copy_(text.image_newline)
    whole.tie_weights()
    return whole.eval()


def save(whole: LlavaOnevisionForConditionalGeneration, directory: Path, note: str = "") -> None:
    """Write the directory that `tango_core` loads."""
    save_tiny(whole, VOCABULARY, directory, note)
