"""InternVL3.5: an InternViT per frame, a pixel shuffle, text between frames, Qwen3.

May import the interfaces of `tango_core.models`, `checkpoints` and `language`; no other family.
`family.py` is what the table of models names. Checkpoints come in two layouts (`checkpoint.py`).
"""
