"""The language half of a checkpoint: every layout on disk, its own weights alone."""

import pytest
import torch
from qwen_by_hand import NAME
from qwen_checkpoints import save_qwen
from safetensors.torch import load_file, save_file

from tango_core.models import load_encoder, load_language_model

pytestmark = pytest.mark.usefixtures("no_gradients")


def test_a_tensor_of_no_half_is_reported(qwen, tmp_path):
    path = save_qwen(qwen, tmp_path)
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "visual.probe": torch.zeros(2)}, path / "model.safetensors")
    load_language_model(NAME, str(path))
    with pytest.raises(ValueError, match=r"has unknown visual\.probe"):
        load_encoder(NAME, str(path))
