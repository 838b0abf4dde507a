import numpy as np
import pytest
import torch

from jobs.training.decoder import DecoderTrainer, drawn_tokens
from jobs.training.frames import KINDS, NUM_PATCHES, PATCH, SIDE, label_patches, labelled_frame
from jobs.training.lesson_plan import Lessons, TypeBalance
from jobs.training.lessons import (
    END,
    TYPE_NAMES,
    ask,
    ask_all,
    drawn_lesson,
    training_clip,
    word_id,
)
from jobs.training.meanings import MEANINGS, TOKEN_SIDE, TOKENS, meanings
from jobs.training.packing import pack
from jobs.training.recipe import DRAWN, SEEN, architecture
from tango_core.benchmarks.shapes.benchmark import SCENES, clip_at, questions
from tango_core.models.language.decoder import Decoder


@pytest.fixture(scope="module")
def decoder():
    torch.manual_seed(0)
    return DecoderTrainer(architecture()).eval()


def test_patches_inside_a_box_say_what_is_there_and_far_ones_say_nothing():
    clip = clip_at("train", 0, 3, num_moments=1)
    labels = label_patches(clip, 0)
    grid = labels.kind.reshape(SIDE, SIDE)
    covered = np.zeros((SIDE, SIDE), dtype=bool)
    for box in clip.boxes(0):
        sprite = clip.sprites[box.sprite]
        x, y = box.center
        name = "plate" if sprite.kind == "plate" else sprite.name
        assert grid[int(y // PATCH), int(x // PATCH)] == 1 + KINDS.index(name)
        top, left = int(box.top // PATCH), int(box.left // PATCH)
        covered[top : int(box.bottom // PATCH) + 1, left : int(box.right // PATCH) + 1] = True
    assert (grid[~covered] == 0).all()
    assert labels.scene == SCENES.index(clip.scenes[0].kind)


def test_icons_are_counted_by_shape():
    clip = next(
        clip
        for index in range(50)
        if (clip := clip_at("train", 0, index, num_moments=1)).counted
        and len(clip.icons[clip.counted]) == 3
    )
    labels = label_patches(clip, 0)
    mine = labels.kind == 1 + KINDS.index(clip.counted)
    assert mine.any()
    assert (labels.count[mine] == 2).all()


def test_frames_are_equal_for_equal_indices_only():
    assert np.array_equal(labelled_frame(0, 5)[0], labelled_frame(0, 5)[0])
    assert not np.array_equal(labelled_frame(0, 5)[0], labelled_frame(1, 5)[0])
    assert labelled_frame(0, 4)[1].kind.shape == (NUM_PATCHES,)


def test_digits_can_take_the_place_of_icons():
    few, many = (
        [(labelled_frame(0, index, plates)[1].digit > 0).sum() for index in range(0, 40, 2)]
        for plates in (0.0, 0.6)
    )
    assert sum(many) > 2 * sum(few)


def test_scenes_are_asked_for_in_single_frames_and_where_there_are_several():
    for num_frames in (1, 2, 4, 8):
        for index in range(12):
            clip, seen = training_clip(0, index, num_frames)
            asked = {TYPE_NAMES[one.kind] for one in ask_all(clip, seen)}
            several = len({clip.scene_at(moment).kind for moment in seen}) > 1
            assert ("order" in asked) == (several or num_frames == 1)


def test_two_frames_can_show_two_scenes():
    scenes = [
        {clip.scene_at(moment).kind for moment in seen}
        for clip, seen in (training_clip(0, index, 2) for index in range(20))
    ]
    assert {len(one) for one in scenes} == {1, 2}


def test_the_scene_of_a_single_frame_is_asked_for():
    clip, seen = training_clip(0, 0, 1)
    scene = word_id(clip.scenes[0].kind)
    for one in ask_all(clip, seen):
        if TYPE_NAMES[one.kind] in ("order", "inscene"):
            assert one.reply[0] == scene
            assert len(set(one.prompt)) > 4


def test_drawn_tokens_say_what_is_where():
    clip, seen = training_clip(0, 1, 2)
    mixed = meanings(clip, seen).reshape(2, TOKEN_SIDE, TOKEN_SIDE, len(MEANINGS))
    for row, moment in enumerate(seen):
        said = mixed[row]
        assert (said[..., MEANINGS.index(clip.scene_at(moment).kind)] > 0).all()
        for box in clip.boxes(moment):
            sprite = clip.sprites[box.sprite]
            x, y = box.center
            token = said[int(y // 16), int(x // 16)]
            assert token[MEANINGS.index("digit" if sprite.kind == "plate" else sprite.name)] > 0
    assert (mixed[:, 0, :, MEANINGS.index("top")] > mixed[:, -1, :, MEANINGS.index("top")]).all()


def test_packed_questions_get_the_logits_that_they_get_alone(decoder):
    lesson = drawn_lesson(0, 2, 2)
    visual = drawn_tokens(
        decoder.meaning, [torch.from_numpy(lesson.visual)], torch.Generator().manual_seed(0)
    )
    asked = [(one.kind, one.prompt, one.reply) for one in lesson.asked[:3]]
    with torch.no_grad():
        packed = pack([asked], 2 * TOKENS)
        together = decoder(visual, packed)
        embed = decoder.language_model.embed_tokens
        plain = Decoder(decoder.language_model, decoder.lm_head)
        for number, (_, prompt, reply) in enumerate(asked):
            before = embed(torch.tensor(packed.opening))
            after = embed(torch.tensor([*prompt, *reply[:-1]]))
            sequence = torch.cat([before, visual[0], decoder.image_newline[None], after])[None]
            states = plain.run(sequence, torch.arange(sequence.shape[1])[None])
            alone = plain.logits(states[0, -len(reply) :])
            torch.testing.assert_close(
                together[packed.question == number], alone, atol=2e-4, rtol=1e-4
            )


def test_the_pitch_sets_the_distance_of_visual_tokens_alone(decoder):
    lesson = drawn_lesson(0, 2, 2)
    asked = [(one.kind, one.prompt, one.reply) for one in lesson.asked[:2]]
    wide, narrow = pack([asked], 2 * TOKENS), pack([asked], 2 * TOKENS, 1 / 4)
    start = len(narrow.opening)
    clip = narrow.positions[0, start : start + 2 * TOKENS + 1]
    assert clip.tolist() == [start + index / 4 for index in range(2 * TOKENS + 1)]
    behind = start + 2 * TOKENS + 1
    assert wide.positions[0, :behind].tolist() == list(range(behind))
    question = narrow.positions[0, behind : behind + len(asked[0][1])]
    first = start + (2 * TOKENS + 1) / 4
    assert question.tolist() == [first + index for index in range(len(asked[0][1]))]


def test_replies_are_text_then_letter_then_the_end():
    clip = clip_at("train", 0, 0)
    for question in questions(clip):
        one = ask(question)
        assert one.reply[-1] == END
        assert one.open_reply == (*one.reply[:-2], END)
        assert (question.groups["type"] == "object") == (not one.open_prompts)


@pytest.mark.parametrize("plan", [DRAWN, SEEN], ids=["drawn", "seen"])
def test_lessons_are_the_training_split_and_depend_on_the_step_alone(plan, monkeypatch):
    splits = []
    real = clip_at

    def spy(split, *args, **kwargs):
        splits.append(split)
        return real(split, *args, **kwargs)

    monkeypatch.setattr("jobs.training.lessons.clip_at", spy)
    first = Lessons(plan, drawn_lesson, 0, 100, 0, 100).at(3)
    second = Lessons(plan, drawn_lesson, 0, 100, 3, 4).at(3)
    assert first.num_frames == second.num_frames
    for one, other in zip(first.lessons, second.lessons, strict=True):
        assert np.array_equal(one.visual, other.visual)
    assert set(splits) == {"train"}


def test_what_is_not_known_is_asked_more_often():
    lesson = drawn_lesson(0, 7, 8)
    kinds = {TYPE_NAMES[one.kind] for one in lesson.asked}
    unknown = sorted(kinds)[0]
    state = {"known": {kind: 0.0 if kind == unknown else 1.0 for kind in kinds}}
    balance = TypeBalance(state, TYPE_NAMES)
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(kinds, 0)
    for _ in range(300):
        for one in balance.choose(lesson, 1, rng):
            counts[TYPE_NAMES[one.kind]] += 1
    assert counts[unknown] > 2 * max(n for kind, n in counts.items() if kind != unknown)
