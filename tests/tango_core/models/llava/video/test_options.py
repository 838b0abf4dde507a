"""Settings of LLaVA-Video: defaults, cache identity, refusals."""

import pytest
from llava_video_clip import NAME, PROMPTS

from tango_core.models import describe_model, load_language_model


class TestOptions:
    def test_defaults_are_the_settings_of_the_publications(self, directory):
        spec = describe_model(NAME, directory)
        assert (spec.frames.num_frames, spec.options.pooling) == (64, "average")
        assert spec.options.time_instruction == "vlmevalkit"

    def test_pooling_changes_cached_tokens_and_the_sentence_does_not(self, directory):
        identity = describe_model(NAME, directory).identity()
        assert describe_model(NAME, directory, pooling="bilinear").identity() != identity
        assert describe_model(NAME, directory, time_instruction="none").identity() == identity

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"pooling": "max"}, "model.pooling must be one of average, bilinear, got 'max'"),
            (
                {"time_instruction": "yes"},
                "model.time_instruction must be one of none, correct, vlmevalkit, lmms_eval",
            ),
            ({"pooling_step": 1}, "model.pooling_step must be 2 or larger, got 1"),
            ({"pooling_step": 8}, "model.pooling_step must be at most the 7 positions .*, got 8"),
        ],
    )
    def test_unknown_values_name_the_setting(self, directory, options, words):
        with pytest.raises(ValueError, match=words):
            describe_model(NAME, directory, **options)

    @pytest.mark.parametrize(
        "options", [{"pooling": "average"}, {"time_instruction": "vlmevalkit"}]
    )
    def test_another_family_refuses_them(self, directory, options):
        (setting,) = options
        with pytest.raises(ValueError, match=f"model.{setting} is no setting of model llava-one"):
            describe_model("llava-onevision-7b", directory, **options)

    def test_without_a_sentence_the_question_follows_the_clip(self, directory, full):
        silent = load_language_model(NAME, directory, time_instruction="none")
        right = silent.layout.lay_out(full, PROMPTS[0]).question
        assert silent.layout.tokenizer.decode(right) == "\nWhat?<|im_end|>\n<|im_start|>assistant\n"
