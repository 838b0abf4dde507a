"""LLaVA-OneVision and LLaVA-Video: SigLIP tower, projector, pooling, newline tokens, Qwen2."""
