"""Settings of LLaVA-Video: defaults, cache identity, refusals."""

from llava_video_clip import NAME, PROMPTS

from tango_core.models import describe_model, load_language_model


class TestOptions:
    def test_defaults_are_the_settings_of_the_publications(self, directory):
        spec = describe_model(NAME, directory)
        assert (spec.frames.num_frames, spec.options.pooling) == (64, "average")
        assert spec.options.time_instruction == "vlmevalkit"

    def test_without_a_sentence_the_question_follows_the_clip(self, directory, full):
        silent = load_language_model(NAME, directory, time_instruction="none")
        right = silent.layout.lay_out(full, PROMPTS[0]).question
        assert silent.layout.tokenizer.decode(right) == "\nWhat?<|im_end|>\n<|im_start|>assistant\n"
