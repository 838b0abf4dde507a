"""A small Qwen2.5-VL: the stock model, its checkpoint, and both halves of it."""

from small_families import family_fixtures

qwen, qwen_checkpoint, encoder, model, endless = family_fixtures("qwen2.5-vl-7b")
