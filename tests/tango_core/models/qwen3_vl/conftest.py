"""A small Qwen3-VL: the stock model, its checkpoint, and both halves of it."""

from small_families import family_fixtures

qwen3, qwen3_checkpoint, encoder, model, endless = family_fixtures("qwen3-vl-8b")
