"""The stages of profile mode: one clip at a time, every step timed.

Unlike in throughput mode, a clip is encoded separately for every method, with only the signals that
the method needs, and cached token sets are recomputed, so that the times are those of one method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pipeline.cache.derived import on_cpu
from pipeline.cache.rows import Entry, identity_of
from pipeline.clips import Clip
from pipeline.question_groups import groups_of
from pipeline.rows import AnswerRow, Result
from pipeline.stages.answer import AnswerQuestions
from pipeline.stages.compress import Compressed, CompressVideo, each_on_its_own, root_of
from tango_core.latency import LatencyProfile, PeakMemory
from tango_core.models.base import ModelSpec
from tango_core.models.placement import resolve_device


class ProfileCompression(CompressVideo):
    """Like `CompressVideo`, but measures every method separately and fills the clip's `profile`.

    `profile` is: cache name -> {`vision`, `compress` and, if the method has these steps,
    `segment`, `select`, `merge` (milliseconds), `peak_gib`}. `vision` includes preprocessing the
    frames and copying them to the device.
    """

    def __init__(self, model: ModelSpec, *args: Any, **options: Any) -> None:
        super().__init__(model, *args, **options)
        self.device = resolve_device(model.device)

    def _compress(self, clip: Clip) -> Compressed:
        """Encode, compress and write the clip for every method."""
        frames, identity = clip.frames, identity_of(vars(clip))
        assert frames is not None
        profile = LatencyProfile(self.device, warm_up=0)
        measured: dict[str, dict[str, float]] = {}

        def measure(name: str) -> None:
            compressor = self.compressors[name]
            groups = groups_of(clip, compressor)
            self.questions.load(groups)
            for group in groups:
                with profile.clip() as latency:
                    with profile.stage("vision"):
                        features = self.source.encoder.encode(frames, compressor.needs)
                    with profile.stage("compress"):
                        (features,) = self.questions.asked(compressor, features, [group])
                        video = compressor.compress(features, clock=profile)
                ms = latency.stage_ms
                times = clip.decode_video_ms or 0.0, ms["vision"], ms["compress"]
                entry = Entry(on_cpu(video), *times)
                self.caches[name].write(replace(identity, key=group.key), entry)
                measured[name] = {**ms, "peak_gib": latency.peak_gib}
                if features.encoder_flops is not None:
                    measured[name]["encode_tflops"] = features.encoder_flops / 1e12

        # `LatencyProfile.clip` resets the peak memory before every method.
        errors = each_on_its_own(clip.missing, measure, root_of(self.caches))
        clip = replace(
            clip,
            encode_ms=sum(times["vision"] for times in measured.values()),
            profile=measured,
        )
        compress_ms: dict[str, float | None] = {
            name: times["compress"] for name, times in measured.items()
        }
        return Compressed(clip, compress_ms, errors)


class ProfileAnswers(AnswerQuestions):
    """Like `AnswerQuestions`, but adds the measurements of `ProfileCompression` and peak memory.

    The peak is the larger one of compressing and answering, with encoder and language model loaded.
    """

    def __init__(self, model: ModelSpec, *args: Any, **options: Any) -> None:
        super().__init__(model, *args, **options)
        self.read_ahead = 0
        self.memory = PeakMemory(resolve_device(model.device))

    def stream(self, clips: Iterable[Clip]) -> Iterator[Result]:
        """Answer one clip after the other and complete the rows of the answers."""
        caches = {planned.name: planned.cache for planned in self.methods}
        for clip in clips:
            self._session = None  # a reused session's memory would count towards the peak
            (done,) = super().stream([clip])
            measured = (clip.profile.get(caches[answer.cell]) for answer in done.answers)
            answers = list(map(self._complete, done.answers, measured))
            yield replace(done, answers=answers)

    def _request(self, *args: Any) -> Any:
        """Reset the peak before every method; no other request is in flight."""
        self.memory.reset()
        return super()._request(*args)

    def _rows(self, *args: Any) -> list[AnswerRow]:
        """Answer rows with the peak memory over all questions of the method."""
        peak = self.memory.gib()
        rows = super()._rows(*args)
        return [replace(row, peak_gib=peak, peak_of=self.memory.kind) for row in rows]

    def _complete(self, answer: AnswerRow, measured: Mapping[str, float] | None) -> AnswerRow:
        """Replace the times of the clip by those of the method."""
        if measured is None:
            return answer
        answered = answer.peak_gib
        peak_gib = None if answered is None else max(answered, measured["peak_gib"])
        times: Any = {f"{name}_ms": measured.get(name) for name in ("segment", "select", "merge")}
        times |= {"encode_ms": measured["vision"], "encode_tflops": measured.get("encode_tflops")}
        return replace(answer, peak_gib=peak_gib, **times)
