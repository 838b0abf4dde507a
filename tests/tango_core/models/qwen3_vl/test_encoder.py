"""Tokens, DeepStack rows and signals of the vision half against the stock tower."""

import pytest
from qwen3_checkpoints import NAME, frames_of, save_qwen3

from tango_core.models import describe_model


class TestDescription:
    def test_only_what_changes_tokens_is_in_the_cache_s_identity(self, qwen3_checkpoint):
        plain = describe_model(NAME, qwen3_checkpoint)
        for same in ({"empty_blocks": "drop"}, {"outer_marks": True}, {"system_turn": True}):
            assert describe_model(NAME, qwen3_checkpoint, **same).identity() == plain.identity()
        for other in ({"companions": "anchor"}, {"max_pixels": 640}, {"min_pixels": 640}):
            assert describe_model(NAME, qwen3_checkpoint, **other).identity() != plain.identity()

    def test_other_architectures_are_refused(self, qwen3, tmp_path):
        path = save_qwen3(qwen3, tmp_path)
        text = (path / "config.json").read_text()
        (path / "config.json").write_text(text.replace('"qwen3_vl"', '"qwen3_vl_moe"'))
        with pytest.raises(ValueError, match="holds a 'qwen3_vl_moe' model, not 'qwen3_vl'"):
            describe_model(NAME, str(path))
        (path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="holds a 'qwen3_vl' model, not 'qwen2_5_vl'"):
            describe_model("qwen2.5-vl-7b", str(path))


def test_timestamps_are_the_middles_of_the_pairs(encoder):
    assert encoder.encode(frames_of(5, (1, 2))).timestamps.tolist() == [0.25, 1.25, 2.0]
