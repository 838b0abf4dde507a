"""The last stage: real frames through the frozen tower; projector and decoder learn together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from jobs.training.decoder import DecoderTrainer
from jobs.training.lessons import Lesson, ask_all, training_clip
from jobs.training.packing import Packed
from jobs.training.projector import patch_states, pooled
from jobs.training.vision import VisionTrainer
from tango_core.benchmarks.shapes.benchmark import render


class SeenLesson:
    """Makes lessons from rendered clips: `visual` is what the projector sees, in float16.

    Args:
        vision: A trained tower, not changed.
    """

    def __init__(self, vision: VisionTrainer) -> None:
        self.vision = vision

    def __call__(self, seed: int, index: int, num_frames: int) -> Lesson:
        """Render a clip and run the tower: (T, N, D)."""
        clip, seen = training_clip(seed, index, num_frames)
        states = patch_states(self.vision, torch.from_numpy(render(clip, seen)))
        return Lesson(ask_all(clip, seen), states.numpy().astype(np.float16))


class SeenTrainer(nn.Module):
    """Projector and decoder.

    Args:
        projector: Of the whole model.
        decoder: Trained on drawn tokens.
    """

    def __init__(self, projector: nn.Module, decoder: DecoderTrainer) -> None:
        super().__init__()
        self.projector = projector
        self.decoder = decoder

    def visual(self, lessons: Sequence[Lesson]) -> Tensor:
        """(B, T * TOKENS, D) tokens of lessons from `SeenLesson`."""
        states = torch.from_numpy(np.stack([one.visual for one in lessons])).float()
        tokens = pooled(self.projector(states.flatten(0, 1)))
        return tokens.reshape(len(lessons), -1, tokens.shape[-1])

    def loss(
        self, lessons: Sequence[Lesson], packed: Packed
    ) -> tuple[Tensor, dict[int, list[bool]]]:
        """As `DecoderTrainer.loss`, from the states of the tower."""
        return self.decoder.loss(self.visual(lessons), packed)
