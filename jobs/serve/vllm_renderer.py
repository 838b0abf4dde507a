"""The prompts of `tango serve`: a chat request becomes token ids and kept tokens of a clip."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.exceptions import VLLMNotFoundError, VLLMValidationError
from vllm.renderers.hf import HfRenderer

from jobs.serve.vllm_plugin import served_clips
from tango_core.errors import UserError

Messages = Sequence[Mapping[str, Any]]


class ClipRenderer(HfRenderer):  # type: ignore[misc]
    """Renders chat requests as the recipe's model does; there is no chat template."""

    async def render_chat_async(
        self,
        conversations: Sequence[Messages],
        *others: Any,
        prompt_extras: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> tuple[list[Messages], list[Any]]:
        """Build the engine's inputs in the renderer's thread.

        Raises:
            VLLMNotFoundError: If there is no such token set; status 404.
            VLLMValidationError: For every other mistake of the client; status 400.
        """
        run = asyncio.get_running_loop().run_in_executor
        inputs = [await run(self._executor, self._input, one) for one in conversations]
        salt = (prompt_extras or {}).get("cache_salt")
        return list(conversations), [
            one if salt is None else {**one, "cache_salt": salt} for one in inputs
        ]

    def render_chat(self, conversations: Sequence[Messages], *others: Any, **options: Any) -> Any:
        """See `render_chat_async`."""
        return list(conversations), [self._input(one) for one in conversations]

    def warmup(self, chat_params: Any) -> None:
        """Do nothing: there is no chat template."""

    def _input(self, messages: Messages) -> Any:
        clips = served_clips()
        try:
            return next(clips.engine.inputs([clips.lay_out(messages)]))
        except FileNotFoundError as error:
            raise VLLMNotFoundError(str(error)) from error
        except UserError as error:
            raise VLLMValidationError(str(error)) from error
