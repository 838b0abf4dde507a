"""The language half: prompt layout, engine, batching and pruning inside.

- `prompt.py`: a prompt as spans of text and visual tokens, a clip as blocks with text around them;
  the interface of a family's layout. `chat.py`: the text of a conversation.
- `engine.py`: a language model combines a `PromptLayout` (per family) and an `Engine`; this
  project's engine decodes greedily with the layers of transformers.
- `layer_loop.py`: the loop over layers, and pruning between them; `attention.py`: attention
  probabilities for pruners, and attention of packed sequences.
- `batching.py`: requests of many clips answered together, and the token budget.
  `packed_pass.py`: one pass of many sequences, a prefill or a decoding step.
- `vllm_qwen.py`: Qwen2.5-VL and Qwen3-VL in vLLM, which only modules named `vllm_*` import.

Imports interfaces (`base`), the contract of in-LLM methods (`compressors.base`) and transformers;
no family and no checkpoint file. Other engines belong here as modules.
"""
