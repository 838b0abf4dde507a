"""Projector and language model trained on rendered frames, and the model made of all parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from jobs.training.language import LanguageTrainer
from jobs.training.packing import Packed
from jobs.training.projector import patch_states, pooled
from jobs.training.samples import Sample, questions_of, training_clip
from jobs.training.vision import VisionTrainer
from tango_core.benchmarks.shapes.render import render


class RenderedSamples:
    """Makes samples from rendered clips: `visual` is the input of the projector, in float16.

    Args:
        vision: A trained tower; it stays as it is.
    """

    def __init__(self, vision: VisionTrainer) -> None:
        self.vision = vision

    def __call__(self, seed: int, index: int, num_frames: int) -> Sample:
        """Render a clip and run the tower: (T, N, D)."""
        clip, moments = training_clip(seed, index, num_frames)
        states = patch_states(self.vision, torch.from_numpy(render(clip, moments)))
        return Sample(questions_of(clip, moments), states.numpy().astype(np.float16))


class JointTrainer(nn.Module):
    """Projector and language model.

    Args:
        projector: Of the whole model.
        language: Trained on synthetic tokens.
    """

    def __init__(self, projector: nn.Module, language: LanguageTrainer) -> None:
        super().__init__()
        self.projector = projector
        self.decoder = language  # the name is part of the keys of checkpoints

    def visual(self, samples: Sequence[Sample]) -> Tensor:
        """(B, T * TOKENS_PER_FRAME, D) tokens of samples from `RenderedSamples`."""
        states = torch.from_numpy(np.stack([one.visual for one in samples])).float()
        tokens = pooled(self.projector(states.flatten(0, 1)))
        return tokens.reshape(len(samples), -1, tokens.shape[-1])

    def loss(
        self, samples: Sequence[Sample], packed: Packed
    ) -> tuple[Tensor, dict[int, list[bool]]]:
        """As `LanguageTrainer.loss`, from the states of the tower."""
        return self.decoder.loss(self.visual(samples), packed)


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
