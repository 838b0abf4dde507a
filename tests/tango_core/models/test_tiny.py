import torch
from transformers import LlavaOnevisionForConditionalGeneration

from tango_core.models import load_language_model, tiny


def test_the_stock_class_loads_the_same_checkpoint():
    directory = tiny.embedded_checkpoint()
    stock, report = LlavaOnevisionForConditionalGeneration.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    language_model = load_language_model("tiny")
    for name, value in language_model.engine.model.language_model.state_dict().items():
        assert torch.equal(value, stock.model.language_model.state_dict()[name]), name
    head = stock.lm_head.weight
    assert torch.equal(language_model.engine.model.lm_head.weight, head)
