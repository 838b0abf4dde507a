"""The language half: how a prompt becomes one sequence, and how tokens are made from it.

- `prompt.py`: a prompt as spans of text and visual tokens; what a family states about its order.
- `blocks.py`: clips with text between their frames: spans and positions.
- `chat.py`: the text of a conversation around clip and question.
- `model.py`: a language model is a `PromptLayout` (per family) and an `Engine`, put together.
- `native.py`: the engine of this project: greedy tokens from stock layers, timers. It uses
  `layer_loop.py` (the loop over layers), `between_layers.py` (pruning between them),
  `pruned_rows.py` (a prompt under a pruner), `deepstack.py` (rows that are added after the first
  layers) and `attention.py` (what a layer attends to, for pruners).
- `batching.py`: requests of many clips answered together. `parts.py` cuts them, `choosing.py`
  says which are next, `prefill.py` and `decoding.py` are the two kinds of passes. In the first
  (`pass_layout.py` is what one holds) `packed_attention.py` keeps sequences apart, in the second
  `step_attention.py`, and `recording.py` makes a graph of a step; `arena.py` holds their keys and
  values, `sizes.py` an arena per length, `budget.py` says how many.
- `spread.py`: layers on several devices.

This room imports interfaces (`base`), the contract of in-LLM methods (`compressors.base`) and
transformers; no family and no checkpoint file. Another engine is a module here.
"""
