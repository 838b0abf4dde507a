"""Qwen2.5-VL and Qwen3-VL in vLLM, asked about clips whose tokens come from a `Compressor`.

vLLM computes three-dimensional positions from the grid of a whole clip. The model classes here take
them from the request instead: the multimodal item of a clip holds the kept tokens and the positions
of the whole prompt, as this project's layout computes them. Positions are a separate integer tensor
and not a part of the embeddings, so neither the model's dtype nor chunked prefill changes them.
The vision tower is not built and its weights are not read.

Written for vLLM 0.32 and 0.33.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from vllm import ModelRegistry
from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
)

from tango_core.models.language.prompt import LaidOutPrompt, VisualTokens

# Model type in config.json -> name of the class below, which replaces the checkpoint's own.
ARCHITECTURES = {"qwen2_5_vl": "TangoQwen2_5_VL", "qwen3_vl": "TangoQwen3VL"}


def register() -> None:
    """Make the model classes known to this process of vLLM; they are imported when needed."""
    for name in ARCHITECTURES.values():
        ModelRegistry.register_model(name, f"{__name__}:{name}")


def engine_arguments() -> dict[str, Any]:
    """Arguments of vLLM's `EngineArgs` with which an engine accepts `clip_inputs`.

    The model's config.json must list one name of `ARCHITECTURES` as its only architecture.
    """
    return {
        # No raw pixels, only items that are embedded already: the tower is not built.
        "limit_mm_per_prompt": {"image": 0, "video": 0},
        "enable_mm_embeds": True,
        # An item holds the positions of its prompt, so it is not kept for the next prompt.
        "mm_processor_cache_gb": 0,
    }


def clip_inputs(
    prompts: Sequence[LaidOutPrompt], placeholder: int, dtype: torch.dtype
) -> Iterator[MultiModalInput]:
    """Build the engine inputs of prompts about one clip.

    Args:
        prompts: Prompts with the same visual tokens, from the family's `PromptLayout`.
        placeholder: Token id that stands where a visual token is: `video_token_id` of the
            checkpoint's configuration.
        dtype: Dtype of the model.

    Yields:
        One input per prompt, for `LLM.generate` or `AsyncLLM.generate`. Its `mm_hashes`, the key of
        vLLM's prefix cache, is a digest of the kept tokens and their positions in the clip.
    """
    visual = [span for span in prompts[0].spans if isinstance(span, VisualTokens)]
    rows = torch.cat([_row(span) for span in visual]).to("cpu", dtype).contiguous()
    digest = hashlib.sha256(repr(visual[0].grid).encode())
    for tensor in (torch.cat([span.indices for span in visual]).contiguous(), rows):
        digest.update(tensor.view(torch.uint8).numpy().data)
    for prompt in prompts:
        ids, mask = prompt.with_placeholder(placeholder)
        first, last = mask.nonzero()[[0, -1], 0].tolist()
        item = {
            "rows": MultiModalFieldElem(data=rows, field=MultiModalBatchedField()),
            "positions": MultiModalFieldElem(
                data=prompt.positions, field=MultiModalBatchedField(keep_on_cpu=True)
            ),
        }
        yield mm_input(
            prompt_token_ids=ids,
            mm_kwargs=MultiModalKwargsItems({"video": [MultiModalKwargsItem(item)]}),
            mm_hashes={"video": [digest.hexdigest()]},
            mm_placeholders={
                "video": [PlaceholderRange(first, last + 1 - first, mask[first : last + 1])]
            },
        )


def _row(span: VisualTokens) -> Tensor:
    """(V, (1 + E) * D): tokens and their companions side by side, as vLLM splits them."""
    if span.companions is None:
        return span.embeddings
    return torch.cat([span.embeddings, span.companions.flatten(1)], dim=1)


class _Information(BaseProcessingInfo):  # type: ignore[misc]
    """Tells vLLM that a prompt may hold a clip of any length."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": 1, "video": 1}

    def get_mm_max_tokens_per_item(
        self, seq_len: int, mm_counts: Mapping[str, int]
    ) -> Mapping[str, int]:
        return dict.fromkeys(mm_counts, seq_len)

    def get_supported_mm_processor_kwargs(self) -> dict[str, set[str]]:
        return {}


class _Nothing(BaseDummyInputsBuilder[_Information]):  # type: ignore[misc]
    """Empty inputs for vLLM's profiling run of the vision tower, which is not built here."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return ""

    def get_dummy_mm_data(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        return {}


class _OnlyClipInputs(BaseMultiModalProcessor[_Information]):  # type: ignore[misc]
    """Refuses pixels: what `clip_inputs` builds needs no processing."""

    requires_tokenizer = False

    def _refuse(self, *arguments: Any) -> NoReturn:
        raise ValueError("this engine answers about clips of a token cache, not about pixels")

    _get_mm_fields_config = _get_prompt_updates = _refuse


class _FromClipInputs:
    """Methods of both models: visual tokens and positions are those of the request's item."""

    def get_mrope_input_positions(
        self, input_tokens: Sequence[int], mm_features: Sequence[Any]
    ) -> tuple[Tensor, int]:
        """(3, S) positions of a prompt and the offset of the tokens after it.

        Tokens beyond the item's positions are numbered consecutively: prompts without a clip, and
        generated tokens that vLLM prefills again after a preemption.
        """
        known = torch.empty((3, 0), dtype=torch.int64)
        if mm_features:
            known = mm_features[0].data["positions"].data
        length = len(input_tokens)
        following = int(known[0, -1]) + 1 if known.shape[1] else 0
        rest = torch.arange(length - known.shape[1]).expand(3, -1) + following
        positions = torch.cat([known, rest], dim=1)
        return positions, int(positions[0, -1]) + 1 - length

    def embed_multimodal(self, *, rows: Sequence[Tensor], **others: Any) -> tuple[Tensor, ...]:
        """Kept tokens, with their companions side by side, of every clip of a scheduler step."""
        return tuple(rows)


_registered = MULTIMODAL_REGISTRY.register_processor(
    _OnlyClipInputs, info=_Information, dummy_inputs=_Nothing
)


@_registered
class TangoQwen2_5_VL(_FromClipInputs, Qwen2_5_VLForConditionalGeneration):  # type: ignore[misc]  # noqa: N801
    """The language model of Qwen2.5-VL."""


@_registered
class TangoQwen3VL(_FromClipInputs, Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """The language model of Qwen3-VL with DeepStack rows, which its first layers add."""

    def __init__(self, *, vllm_config: Any, prefix: str = "model") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        # vLLM leaves DeepStack out where there is no tower.
        width = self.config.text_config.hidden_size
        levels = len(self.config.vision_config.deepstack_visual_indexes)
        self.use_deepstack = True
        self.deepstack_num_level = levels
        self.visual_dim, self.multiscale_dim = width, levels * width
        longest = vllm_config.scheduler_config.max_num_batched_tokens
        self.deepstack_input_embeds = [torch.zeros(longest, width) for _ in range(levels)]
        self.deepstack_input_embeds_num_tokens = 0
