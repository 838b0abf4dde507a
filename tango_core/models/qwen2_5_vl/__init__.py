"""Qwen2.5-VL: windowed tower, pairs of frames, positions in time, row and column."""
