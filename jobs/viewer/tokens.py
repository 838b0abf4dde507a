"""Kept and merged tokens of a cell on a clip, in the form that the page draws.

A method that reads the question has a token set per question text, others have one per clip.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from jobs.config.overrides import read_recipe
from jobs.config.recipe import parse_job
from jobs.results.quantities import Json
from jobs.viewer.frames import PER_SPRITE, NotShownError, View
from pipeline.cache.derived import compressor_of, features_with
from pipeline.cache.directory import TokenCache
from pipeline.cache.features import ReadFeatures
from pipeline.cache.rows import CacheError
from pipeline.clips import Clip
from pipeline.question_groups import QuestionGroup, QuestionReader, groups_of
from pipeline.redaction import redacted
from tango_core.combination import Combination, Drawing
from tango_core.compressors.base import Compressor
from tango_core.errors import UserError
from tango_core.models import Dtype, describe_model

ONLY_POSITIONS = (
    "Only the kept positions of this token set are known, not the merged tokens, the segments, the "
    "static positions or the saliency. They are computed from stored features, for methods of this "
    "version that have a plan: run the recipe with cache.features: all."
)


@dataclass(frozen=True)
class TokenDrawing:
    """A token set with the data that the page draws.

    Attributes:
        plan: Kept tokens and their sources; a selection if the sources are unknown.
        about: How the method chooses tokens, in its own words; "" if it does not ship.
        missing: Sentences about what cannot be drawn, and how to obtain it.
    """

    plan: Combination
    about: str = ""
    missing: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """JSON for the page; arrays are base64 of little-endian numbers."""
        plan, drawing = self.plan, self.plan.drawing or Drawing()
        index_type = "<u2" if plan.num_total <= 65536 else "<u4"
        scale = drawing.saliency_range
        return {
            "grid": list(plan.grid),
            "times": [round(time, 4) for time in plan.timestamps.tolist()],
            "index_type": index_type,
            "kept": _packed(plan.indices, index_type),
            "offsets": _packed(plan.offsets, "<u4"),
            "sources": _packed(plan.sources, index_type),
            "weights": _packed(plan.weights, "<f4"),
            "segments": list(drawing.segments),
            "static": _packed(drawing.static, "u1"),
            "saliency": _packed(drawing.saliency, "u1"),
            "range": None if scale is None else [float(f"{one:.4g}") for one in scale.tolist()],
            "about": self.about,
            "missing": list(self.missing),
        }


def _packed(values: torch.Tensor | None, kind: str) -> str | None:
    """Encode numbers as base64; `None` is unchanged."""
    if values is None:
        return None
    return base64.b64encode(values.numpy().astype(kind).tobytes()).decode()


@dataclass(frozen=True)
class ClipTokens:
    """The token sets of a cell on a clip, with the frames that they are drawn over.

    Attributes:
        sets: One per question text, or a single one.
        of: Id of a question -> index of its token set; empty if all questions share one.
        view: The frames.
    """

    sets: tuple[TokenDrawing, ...]
    of: Mapping[str, int]
    view: View

    def to_json(self, ids: Sequence[str], urls: list[str], missing: str | None = None) -> Json:
        """JSON for the page.

        Args:
            ids: Ids of the questions about the clip.
            urls: URLs of the pictures.
            missing: Reason why there are no pictures; `None` if there are.
        """
        times = [round(time, 4) for time in self.view.times]
        return {
            "sets": [one.to_json() for one in self.sets],
            "of": [self.of.get(one, 0) for one in ids] if self.of else [],
            "view": {"times": times, "per": PER_SPRITE, "urls": urls, "missing": missing},
        }


class TokenSets:
    """The token caches of some runs, opened on first use.

    Args:
        roots: Possible directories or URLs of the caches, the likeliest first.
        recipe: Resolved recipe of a run, for the embeddings of questions.
    """

    def __init__(self, roots: Sequence[str], recipe: Path) -> None:
        self.roots, self._recipe = tuple(roots), recipe
        self._lock = threading.Lock()
        self._cache = cache(self._opened)
        self._features = cache(self._features_of)  # the locations of all are listed once
        self._questions = cache(self._question_reader)

    def tokens(self, name: str, asked: Mapping[str, Any]) -> ClipTokens:
        """Load the token sets of a clip.

        Args:
            name: Name of the cache.
            asked: Row of `clips/*.parquet` of the clip.

        Raises:
            NotShownError: If they are missing.
        """
        if not name:
            raise NotShownError("The run has no record of its token cache.")
        if not asked["clip_key"]:
            raise NotShownError("The clip's file was not found, so there is nothing to draw.")
        names = ("benchmark", "video_id", "clip_key", "questions")
        clip = Clip(**{name: asked[name] for name in names})
        try:
            with self._lock:  # reading fills the indices of shards
                stored = self._cache(name)
                compressor = compressor_of(stored.settings)
                groups = [QuestionGroup(clip.clip_key, None, ())]
                if compressor is not None:
                    groups = groups_of(clip, compressor)
                sets = self._sets(stored, compressor, groups, clip.clip_key)
        except FileNotFoundError as error:
            raise NotShownError(
                f"The token cache {name} does not hold this clip: it was removed, or the video "
                "was replaced since. Run the job again."
            ) from error
        except NotShownError:
            raise
        except (CacheError, UserError, OSError) as error:
            raise NotShownError(
                f"{redacted(' '.join(str(error).split()))}. Run the job again."
            ) from error
        ids = [one["id"] for one in json.loads(asked["questions"])]
        of = {ids[index]: at for at, group in enumerate(groups) for index in group.questions}
        sampling = (stored.settings.get("model") or {}).get("frames")
        view = View(
            asked["path"],
            None if asked["clip_start"] is None else (asked["clip_start"], asked["clip_end"]),
            asked["source_fingerprint"],
            json.dumps(sampling, sort_keys=True) if sampling else "",
            tuple(sets[0].plan.timestamps.tolist()),
        )
        return ClipTokens(sets, of if groups[0].text is not None else {}, view)

    def _sets(
        self,
        stored: TokenCache,
        compressor: Compressor | None,
        groups: Sequence[QuestionGroup],
        key: str,
    ) -> tuple[TokenDrawing, ...]:
        """The token sets of a clip, from its features if they are stored."""
        about = "" if compressor is None else (type(compressor).__doc__ or "").partition("\n")[0]
        if compressor is not None and (compressor.has_plan or compressor.outer_retention >= 1):
            with suppress(FileNotFoundError):
                features = self._features(stored.name)(key).features
                own = [features]
                if compressor.question_field is not None:
                    reader = self._questions(stored.settings["model"]["dtype"])
                    own = reader.asked(compressor, features, groups)
                return tuple(TokenDrawing(compressor.plan(one), about) for one in own)
        kept = [stored.read(group.key).video for group in groups]
        selections = (Combination(one.indices, one.grid, one.timestamps) for one in kept)
        return tuple(TokenDrawing(plan, about, (ONLY_POSITIONS,)) for plan in selections)

    def _features_of(self, name: str) -> Callable[[str], ReadFeatures]:
        stored = self._cache(name)
        compressor = compressor_of(stored.settings)
        assert compressor is not None
        return features_with(stored, compressor)

    def _question_reader(self, dtype: Dtype) -> QuestionReader:
        """Reads the embeddings of questions from the run's checkpoint, and no other weight."""
        model = parse_job(read_recipe(self._recipe), str(self._recipe)).model
        path = None if model.path is None else str(model.path)
        return QuestionReader(
            describe_model(model.name, path, dtype=dtype, device="cpu", revision=model.revision)
        )

    def _opened(self, name: str) -> TokenCache:
        for root in self.roots:
            with suppress(FileNotFoundError):
                return TokenCache.existing(root, name)
        where = " or ".join(redacted(root) for root in self.roots)
        raise NotShownError(
            f"The token cache {name} is not in {where}. Name its directory with --cache."
        )
