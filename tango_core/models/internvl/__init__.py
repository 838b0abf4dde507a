"""InternVL3.5: one tile of 448 x 448 pixels per frame, 256 tokens each, text between frames, Qwen3.

`family` holds the options and reads checkpoints in both layouts, `encoder` is the vision half,
`layout` the order of a prompt. Imports what all models share, and no other family.
"""
