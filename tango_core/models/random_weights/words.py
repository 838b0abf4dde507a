"""A tokenizer for checkpoints that come without one: real special tokens, a made-up vocabulary."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from tango_core.models.language.chat import INTERNVL2_5
from tango_core.models.random_weights.geometry import Geometry

# Prompts of video benchmarks have about these words, and so about as many tokens as with the
# published tokenizer; any other text is cut into shorter pieces.
_TEXT = (
    "system\nYou are a helpful assistant.",
    "user\nThese are the frames of a video. Select the best answer to the following "
    "multiple-choice question based on the video. Respond with only the letter (A, B, C, or D) "
    "of the correct option.",
    "Question: What does the person in the video do? Which of the following is true? "
    "How many times, when, where, why and in which order does it happen?",
    "A. The\nB. A\nC. In\nD. It\nAnswer: The best answer is:\nassistant\n",
    "The video lasts for seconds, and frames are uniformly sampled from it. These frames are "
    "located at Please answer the following questions related to this video.",
    "Answer with the option's letter from the given choices directly. Only give the best option.",
)
# What InternVL's prompts have besides.
_INTERNVL = (INTERNVL2_5.opening, "Frame-1: Frame-2: Frame1: Frame2: ")
_LEARNED = 1024


def save_generated_tokenizer(geometry: Geometry, directory: Path) -> None:
    """Write a byte-level tokenizer that cuts every text and has a text for every id.

    Args:
        geometry: Whose special tokens it has, at their published ids.
        directory: Where its files go.
    """
    size = geometry.text["vocab_size"]
    trainer = BpeTrainer(
        vocab_size=min(_LEARNED, geometry.first_special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learned = Tokenizer(BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # Every line ten times: the trainer joins only what it sees more than once.
    lines = (*_TEXT, *_INTERNVL) if geometry.layout.startswith("internvl") else _TEXT
    learned.train_from_iterator([line for line in lines for _ in range(10)], trainer)
    vocabulary: dict[str, int] = learned.get_vocab()
    # Ids that no text is cut into, which a model with random weights answers with.
    for index in range(len(vocabulary), geometry.first_special):
        vocabulary[f"Ġ#{index}"] = index
    stop = geometry.first_special + len(geometry.special_tokens)
    for index in range(stop, size):
        vocabulary[f"Ġ#{index}"] = index
    for offset, token in enumerate(geometry.special_tokens):
        vocabulary[token] = geometry.first_special + offset
    tokenizer = Tokenizer(BPE(vocabulary, _merges(learned)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in geometry.special_tokens]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(geometry.special_tokens[3:]),
    ).save_pretrained(directory)


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """What the trainer joined, in its order."""
    import json

    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(first, second) for first, second in merges]
