"""The engine of this project: greedy answers from a loop over stock layers of transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tango_core.compressors.base import LayerPruner
from tango_core.models.language import budget
from tango_core.models.language.arena import bytes_per_token
from tango_core.models.language.attention import use_packed_attention
from tango_core.models.language.batching import BatchSession
from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.language.model import Engine
from tango_core.models.language.parts import LaidOutRequest, Reply
from tango_core.models.language.prefill import embed_spans
from tango_core.models.language.prompt import LaidOutPrompt, Span
from tango_core.models.memory_faults import cuda_is_in_use
from tango_core.models.towers.frame_batches import free_bytes
from tango_core.types import Answer, NotFiniteError


class NativeEngine(Engine):
    """Answers prompts with the layers of a checkpoint, always taking the most likely token.

    A checkpoint's generation_config.json may ask for sampling or a repetition penalty; neither is
    used, so that replies can be repeated. Only its end-of-turn tokens are.

    Args:
        model: The language half, with `language_model` (a stock text model) and `lm_head`.
        decode_text: Token ids -> text without special tokens.
        eos_ids: Tokens that end a reply.
        compiles: Whether layers are compiled for prefill (`compiling.py`).

    Raises:
        ValueError: If the layers do something that `LayerLoop` does not support.
    """

    def __init__(
        self,
        model: nn.Module,
        decode_text: Callable[[list[int]], str],
        eos_ids: frozenset[int],
        compiles: bool = False,
    ) -> None:
        half: Any = model
        self.model = model
        self.layer_loop = LayerLoop(half.language_model, half.lm_head, compiles)
        self.decode_text = decode_text
        self.eos_ids = eos_ids
        use_packed_attention(half.language_model)
        # With room for one part of a request at a time.
        self._alone = BatchSession(self, 1)

    @property
    def layers(self) -> list[Any]:
        """The layers of the language model."""
        return self.layer_loop.layers

    def embed(self, spans: Sequence[Span]) -> Tensor:
        """(S, D) embeddings of text and visual tokens."""
        return embed_spans(self.layer_loop, spans)

    def place(self, tokens: Tensor) -> Tensor:
        """A clip's tokens where the layers are, so that questions about it need no more uploads."""
        device = self.layer_loop.device
        if cuda_is_in_use() and tokens.device.type == "cpu" != device.type:
            tokens = tokens.pin_memory().to(device, non_blocking=True)
        return tokens.to(device, self.layer_loop.dtype)

    def session(
        self,
        batch_tokens: int | None = None,
        guard: Callable[[Exception], None] = lambda error: None,
    ) -> BatchSession:
        """See `Engine.session`; `None` is `auto_batch_tokens`."""
        if batch_tokens is None:
            batch_tokens = auto_batch_tokens(self.layer_loop)
        return BatchSession(self, batch_tokens, guard)

    def answer(
        self,
        prompts: Sequence[LaidOutPrompt],
        *,
        pruner: LayerPruner | None = None,
        max_new_tokens: int = 16,
        share_prefix: bool = True,
    ) -> list[Answer]:
        """Answer prompts about one clip; see `Engine.answer`.

        Prompts with the same text before the clip share the prefill of that text, of the clip, and
        of the words behind it that all of them begin with, and continue from there in batches; all
        others are answered one after the other. `BatchSession` says what the times mean.

        Args:
            prompts: All about one clip.
            pruner: Drops visual tokens between layers; every prompt is then prefilled on its own.
            max_new_tokens: Upper bound per reply, 1 or larger.
            share_prefix: `False` prefills every prompt on its own.

        Raises:
            ValueError: If `max_new_tokens` is smaller than 1, or a prompt with several clips is to
                be pruned.
        """
        request = LaidOutRequest(prompts, pruner, max_new_tokens, share_prefix)
        try:
            self._alone.add(request)
            while True:
                found = next((got for done, got in self._alone.step() if done is request), None)
                if found is not None:
                    break
        except BaseException:  # Ctrl-C in a notebook: what is half done must not meet the next one
            self._alone = BatchSession(self, 1)
            raise
        if isinstance(found, Exception):
            raise found
        return found

    def clock(self) -> float:
        """Seconds, after the device has finished what it was asked to do."""
        self.layer_loop.spread.synchronize()
        return time.perf_counter()

    def not_finite(self) -> NotFiniteError:
        """The error of a prompt whose logits are NaN or infinite."""
        dtype = str(self.layer_loop.dtype).removeprefix("torch.")
        return NotFiniteError(
            f"the language model computed NaN or infinite logits in {dtype}; set model.dtype to "
            "float32 or bfloat16, or check the checkpoint's weights"
        )

    def finish(self, reply: Reply) -> Answer:
        """Turn token ids and seconds into an answer."""
        return Answer(
            text=self.decode_text(reply.tokens).strip(),
            choice=None,
            status="ok",
            prompt_tokens=len(reply.prompt),
            new_tokens=len(reply.tokens),
            prefill_ms=reply.prefill * 1e3,
            ttft_ms=reply.first * 1e3,
            decode_ms=reply.decode * 1e3,
            visual_tokens=reply.prompt.num_visual,
            clip_text_tokens=reply.prompt.num_clip_text,
        )


def auto_batch_tokens(layer_loop: LayerLoop) -> int:
    """Tokens that are answered together where nobody says how many.

    On CUDA as many as half of the memory that is free now has room for: keys and values, and what
    the widest layer keeps of every row while it computes.
    """
    if layer_loop.device.type != "cuda" or not cuda_is_in_use():
        return budget.on_cpu(sum(int(one.nbytes) for one in layer_loop.layers[0].parameters()))
    free = free_bytes(layer_loop.device)
    config = layer_loop.config
    itemsize = torch.empty((), dtype=layer_loop.dtype).element_size()
    row = budget.row_bytes(config.hidden_size, config.intermediate_size, itemsize)
    return budget.on_gpu(free or 0, bytes_per_token(layer_loop.layers) + row)
