"""The language half: prompt layout, engine, batching and pruning inside.

- `prompt.py`: a prompt as spans of text and visual tokens, a clip as blocks with text around them;
  what a family states about its order. `chat.py`: the text of a conversation.
- `engine.py`: a language model is a `PromptLayout` (per family) and an `Engine`, put together; the
  engine of this project: greedy tokens from stock layers, timers.
- `layer_loop.py`: the loop over layers; `pruning.py`: what happens between them; `attention.py`:
  what a layer attends to, and how sequences are kept apart.
- `batching.py`: requests of many clips answered together. `prefill.py` and `decoding.py` are the
  two kinds of passes; `arena.py` holds keys and values, and says of how many tokens.

Imports interfaces (`base`), the contract of in-LLM methods (`compressors.base`) and transformers;
no family and no checkpoint file. Another engine is a module here.
"""
