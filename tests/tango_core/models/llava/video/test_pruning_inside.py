"""Layer pruners on clips with newline tokens."""

from dataclasses import dataclass, field

from llava_video_clip import PROMPTS, SIDE

from tango_core.compressors import build_method
from tango_core.compressors.base import LayerContext, LayerPruner, Pruned


@dataclass(frozen=True)
class Recorder(LayerPruner):
    """Runs another pruner and writes down which visual tokens it was shown and kept."""

    inner: LayerPruner = None
    seen: list = field(default_factory=list)

    def layers(self, num_layers: int) -> tuple[int, ...]:
        return self.inner.layers(num_layers)

    def prune(self, context: LayerContext) -> Pruned:
        pruned = self.inner.prune(context)
        start, stop = int(context.visual[0]), context.after
        inside = pruned.keep[(pruned.keep >= start) & (pruned.keep < stop)] - start
        before = context.visual_indices[context.previous_visual]
        self.seen.append((before, before[inside]))
        return pruned


class TestPruningInside:
    def test_the_hybrid_of_the_paper_drops_newlines_like_any_token(self, model, features):
        method = build_method(
            "tango",
            num_layers=4,
            retention=0.5,
            inner={"name": "fastv-merge", "layer": 2, "retention": 0.5},
        )
        video = method.compressor.compress(features)
        recorder = Recorder(1.0, 0, method.pruner)
        answers = model.answer(video, PROMPTS, pruner=recorder, max_new_tokens=4)
        assert [answer.text for answer in answers] == [
            answer.text
            for answer in model.answer(video, PROMPTS, pruner=method.pruner, max_new_tokens=4)
        ]
        assert len(recorder.seen) == len(PROMPTS)
        for before, after in recorder.seen:
            rows = len({g // SIDE for g in video.indices.tolist()})
            assert int((before == -1).sum()) == rows
            assert len(before) == video.num_kept + rows
            assert len(after) == round(len(before) / 2)
        assert any(0 < int((after == -1).sum()) < rows for _, after in recorder.seen)
