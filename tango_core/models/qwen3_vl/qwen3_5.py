"""Qwen3.5: the tower of Qwen3-VL without DeepStack, and a language model with linear attention.

Three of four layers of the language model are gated delta nets, with a recurrent state instead of
keys and values. Replies are those of the chat template with `enable_thinking=False`.
"""

from __future__ import annotations

from tango_core.models.qwen3_vl.family import HybridFamily, StampedOptions

FAMILY = HybridFamily(StampedOptions)
