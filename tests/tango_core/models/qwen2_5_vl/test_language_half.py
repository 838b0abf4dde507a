"""The language half of a checkpoint: every layout on disk, its own weights alone."""

import pytest
import torch
from qwen_by_hand import ASKED, NAME, assert_close, embeddings, whole
from qwen_checkpoints import build_qwen, save_qwen
from safetensors.torch import load_file, save_file

from tango_core.models import load_encoder, load_language_model

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", ["sharded", "hub", "modules"])
def test_every_layout_on_disk_gives_the_same_logits(tmp_path, layout, tied):
    stock = build_qwen(tied=tied)
    model = load_language_model(NAME, str(save_qwen(stock, tmp_path, layout)))
    prompt = model.layout.lay_out(whole((3, 2, 5)), ASKED)
    embeds = embeddings(model, prompt)
    expected = stock(inputs_embeds=embeds, position_ids=prompt.positions[:, None]).logits
    hidden = model.engine.layer_loop.run(embeds, prompt.positions[:, None])
    assert_close(model.engine.layer_loop.logits(hidden), expected)
    embedding = model.engine.model.language_model.embed_tokens.weight
    assert (model.engine.model.lm_head.weight.data_ptr() == embedding.data_ptr()) == tied


def test_the_language_half_holds_no_weight_of_the_tower(qwen, model):
    own = {*qwen.model.language_model.parameters(), *qwen.lm_head.parameters()}
    expected = sum(value.numel() for value in own)
    assert sum(value.numel() for value in model.engine.model.parameters()) == expected
    for name, buffer in model.engine.model.language_model.named_buffers():
        assert torch.equal(buffer, qwen.model.language_model.get_buffer(name)), name


def test_a_tensor_of_no_half_is_reported(qwen, tmp_path):
    path = save_qwen(qwen, tmp_path)
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "visual.probe": torch.zeros(2)}, path / "model.safetensors")
    load_language_model(NAME, str(path))
    with pytest.raises(ValueError, match=r"has unknown visual\.probe"):
        load_encoder(NAME, str(path))
