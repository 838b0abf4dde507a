"""The token sets that a server answers about, and how a client names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from jobs.config.recipe import Job
from jobs.run.build import methods_of, model_of, raise_if_not_on_engine
from pipeline.cache.derived import derived, features_with
from pipeline.cache.directory import TokenCache, open_cache
from pipeline.cache.folders import find_caches
from tango_core.compressors.base import Compressor
from tango_core.errors import InputError, MissingFileError
from tango_core.models import load_language_model
from tango_core.models.base import ModelSpec
from tango_core.models.language.engine import LayoutAndEngine
from tango_core.models.language.prompt import LaidOutPrompt, PromptLayout
from tango_core.models.language.vllm_engine import VllmEngine
from tango_core.types import CompressedVideo, Prompt

SCHEME = "tango://"
_NAMED = f"a clip is named {SCHEME}KEY/METHOD/RETENTION, or {SCHEME}KEY/full"


@dataclass(frozen=True)
class ServedMethod:
    """A method of the recipe and the caches with its token sets.

    Attributes:
        name: Name of its cell.
        compressor: Its compressor.
        caches: Caches of the compressor on the model. There are several if clips were decoded with
            several versions of a decoder; a clip's key then is in one of them.
    """

    name: str
    compressor: Compressor
    caches: tuple[TokenCache, ...]


@dataclass(frozen=True)
class ServedClips:
    """Everything that questions are answered about.

    Attributes:
        spec: The model.
        layout: Its prompts.
        engine: Its engine, which is not started; it builds inputs.
        methods: `"tango/0.1"` or `"full"` -> method.
    """

    spec: ModelSpec
    layout: PromptLayout
    engine: VllmEngine
    methods: Mapping[str, ServedMethod]

    def lay_out(self, messages: Sequence[Mapping[str, Any]]) -> LaidOutPrompt:
        """Lay out the prompt of a chat request.

        Args:
            messages: See `read_request`. The clip is `tango://KEY/METHOD/RETENTION`, or
                `tango://KEY/METHOD` for a method without a retention. Other options of a method
                follow as in the names of cells, URL-encoded.

        Raises:
            InputError: If the request is malformed, the recipe has no such method, or the stored
                token set is damaged or not of this model.
            MissingFileError: If there is no token set of the clip.
        """
        url, prompt = read_request(messages)
        key, _, method = url.removeprefix(SCHEME).partition("/")
        if not url.startswith(SCHEME) or not key or not method:
            raise InputError(f"{_NAMED}, got {url!r}")
        served = self.methods.get(unquote(method))
        if served is None:
            raise InputError(
                f"method {unquote(method)!r} is not served; served are {', '.join(self.methods)}"
            )
        return self.layout.lay_out(self._read(key, served), prompt, served.compressor.positions)

    def _read(self, key: str, served: ServedMethod) -> CompressedVideo:
        """Read or compute a token set.

        Raises:
            InputError: If it is damaged.
            MissingFileError: If it is neither stored nor can be computed from stored features.
        """
        for cache in served.caches:
            with suppress(FileNotFoundError):
                return cache.read(key).video
            with suppress(FileNotFoundError):
                features = features_with(cache, served.compressor)(key)
                return derived(served.compressor, features).video
        raise MissingFileError(
            f"the server's cache has no token set of {served.name} of clip {key!r}; "
            "`tango precompute` makes it"
        )


def open_clips(job: Job, root: str) -> ServedClips:
    """Describe the model of a recipe and find the caches of its methods; no weights are loaded.

    Args:
        job: The recipe.
        root: Directory or URL of the caches.

    Raises:
        InputError: If a method prunes inside the language model or reads the question, or no cache
            of a method exists.
    """
    spec = model_of(job)
    methods, _ = methods_of(job, spec)
    found = [folder.cache for folder in find_caches(root) if isinstance(folder.cache, TokenCache)]
    served = {}
    for name, method in methods:
        raise_if_not_on_engine(name, method, "vllm")
        if method.compressor.question_field is not None:
            raise InputError(
                f"method {name!r} has tokens for each question, and a served clip is named without "
                "one; leave it out"
            )
        wanted = open_cache(root, spec, method.compressor)
        caches = [one for one in found if _without_decoder(one) == _without_decoder(wanted)]
        if not caches:
            raise MissingFileError(
                f"--cache {root} holds no token sets of {name!r} on model {spec.name} in "
                f"{spec.dtype}; `tango precompute` makes them"
            )
        served[name.replace(" r=", "/", 1)] = ServedMethod(name, method.compressor, tuple(caches))
    model = load_language_model(spec)
    assert isinstance(model, LayoutAndEngine)
    assert isinstance(model.engine, VllmEngine)
    return ServedClips(spec, model.layout, model.engine, served)


def _without_decoder(cache: TokenCache) -> dict[str, Any]:
    """Settings of a cache without the decoder: a server decodes no video, and may lack it."""
    settings = cache.settings
    model = {key: value for key, value in settings["model"].items() if key != "decoder"}
    return {**settings, "model": model}


def read_request(messages: Sequence[Mapping[str, Any]]) -> tuple[str, Prompt]:
    """The clip's URL and the prompt of a chat request.

    Args:
        messages: One user message with a `video_url` part and text parts. Text before the video
            part stands before the clip.

    Raises:
        InputError: If there are other messages or parts.
    """
    parts = messages[0].get("content") if len(messages) == 1 else None
    if not isinstance(parts, list) or messages[0].get("role") != "user":
        raise InputError(
            "send one message of role user with a list of parts: one of type video_url, "
            f"the others of type text; {_NAMED}"
        )
    urls, texts = [], ["", ""]
    for part in parts:
        if part.get("type") == "video_url":
            urls.append(str(part["video_url"]["url"]))
        elif part.get("type") == "text":
            texts[bool(urls)] += str(part["text"])
        else:
            raise InputError(f"a part of type {part.get('type')!r} is not answered about")
    if len(urls) != 1:
        raise InputError(f"send one part of type video_url, got {len(urls)}; {_NAMED}")
    return urls[0], Prompt(*texts)
