"""The stages of profile mode: one clip at a time, every step timed.

Two differences from throughput mode make the times those of each method alone. A clip is encoded
again for every method, with the signals that this method needs and no others. And what the cache
holds is not used, only replaced: a hit would leave nothing to measure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pipeline.cache.derived import on_cpu
from pipeline.cache.rows import Entry, identity_of
from pipeline.rows import Clip, Result, Row
from pipeline.stages.answer import AnswerQuestions
from pipeline.stages.compress import (
    Compressed,
    CompressVideo,
    frames_of,
    root_of,
    without_frames,
)
from pipeline.stages.device_faults import each_on_its_own
from tango_core.latency import LatencyProfile, PeakMemory
from tango_core.models.base import ModelSpec
from tango_core.models.placement import resolve_device

_STEPS = ("segment", "select", "merge")


class ProfileCompression(CompressVideo):
    """As `CompressVideo`, method by method; adds the clip's `profile`.

    `profile` is JSON: cache name -> {`vision`, `compress` and, of methods that have them,
    `segment`, `select`, `merge`: milliseconds, `peak_gib`}. Vision includes moving the frames to
    the device and preparing them.
    """

    def __init__(self, model: ModelSpec, *args: Any, **options: Any) -> None:
        super().__init__(model, *args, **options)
        self.device = resolve_device(model.device)

    def _compress(self, clip: Clip) -> Compressed:
        """Encode, compress and write, once per method."""
        frames, identity = frames_of(clip), identity_of(vars(clip))
        profile = LatencyProfile(self.device, warm_up=0)
        measured: dict[str, dict[str, float]] = {}

        def measure(name: str) -> None:
            compressor = self.compressors[name]
            with profile.clip() as latency:
                with profile.stage("vision"):
                    features = self.source.encoder.encode(frames, compressor.needs)
                with profile.stage("compress"):
                    video = compressor.compress(features, clock=profile)
            ms = latency.stage_ms
            entry = Entry(on_cpu(video), clip.decode_video_ms or 0.0, ms["vision"], ms["compress"])
            self.caches[name].write(identity, entry)
            measured[name] = {**ms, "peak_gib": latency.peak_gib}

        # What one method leaves in memory is not counted in the next one's peak.
        errors = each_on_its_own(clip.missing, measure, root_of(self.caches))
        clip = replace(
            clip,
            encode_ms=sum(times["vision"] for times in measured.values()),
            compress_ms=json.dumps({}),
            profile=json.dumps(measured),
        )
        compress_ms: dict[str, float | None] = {
            name: times["compress"] for name, times in measured.items()
        }
        return Compressed(without_frames(clip), compress_ms, errors)


class ProfileAnswers(AnswerQuestions):
    """As `AnswerQuestions`; adds what `ProfileCompression` measured, and peak memory, per method.

    The peak is the larger one of compressing and answering, both halves of the model included.
    """

    def __init__(self, model: ModelSpec, *args: Any, **options: Any) -> None:
        super().__init__(model, *args, **options)
        self.read_ahead = 0
        self.memory = PeakMemory(resolve_device(model.device))

    def stream(self, clips: Iterable[Clip]) -> Iterator[Result]:
        """Answer one clip after the other and complete the rows of the answers."""
        caches = {planned.name: planned.cache for planned in self.methods}
        for clip in clips:
            self._session = None  # memory that is kept for the next clip would be in its peak
            (done,) = super().stream([clip])
            measured = json.loads(clip.profile or "{}")
            answers = [self._complete(a, measured.get(caches[a["cell"]])) for a in done.answers]
            yield replace(done, answers=answers)

    def _request(self, *args: Any) -> Any:
        """Memory is that of one method from here on: nothing else is with the model."""
        self.memory.reset()
        return super()._request(*args)

    def _rows(self, *args: Any) -> list[Row]:
        """With the peak, in which all questions of the method are."""
        peak = self.memory.gib()
        return [
            {**row, "peak_gib": peak, "peak_of": self.memory.kind} for row in super()._rows(*args)
        ]

    def _complete(self, answer: Row, measured: Mapping[str, float] | None) -> Row:
        """Times of this method instead of those of the clip."""
        if measured is None:
            return answer
        answered = answer.get("peak_gib")
        return {
            **answer,
            "encode_ms": measured["vision"],
            **{f"{step}_ms": measured.get(step) for step in _STEPS},
            "peak_gib": None if answered is None else max(answered, measured["peak_gib"]),
        }
