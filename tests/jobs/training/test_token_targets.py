"""The tokens that the projector should produce."""

from __future__ import annotations

from jobs.training.samples import TARGET_WORDS, TOKEN_SIDE, token_targets, training_clip


def test_targets_name_the_objects_where_they_are():
    clip, moments = training_clip(0, 1, 2)
    weights = token_targets(clip, moments).reshape(2, TOKEN_SIDE, TOKEN_SIDE, len(TARGET_WORDS))
    for row, moment in enumerate(moments):
        frame = weights[row]
        assert (frame[..., TARGET_WORDS.index(clip.scene_at(moment).kind)] > 0).all()
        for box in clip.boxes(moment):
            sprite = clip.sprites[box.sprite]
            x, y = box.center
            token = frame[int(y // 16), int(x // 16)]
            assert token[TARGET_WORDS.index("digit" if sprite.kind == "plate" else sprite.name)] > 0
    top = weights[..., TARGET_WORDS.index("top")]
    assert (top[:, 0] > top[:, -1]).all()
