"""Tables of people's own videos, and questions about the embedded world."""

import pytest

from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.shapes.questions import pick, questions
from tango_core.benchmarks.shapes.world import clip_at, rng_of


@pytest.fixture
def read_table(tmp_path):
    """`read_table(text, name)` writes a table of people's own videos and reads its items."""

    def read(text, name="questions.csv"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return list(build_benchmark("custom", root=str(tmp_path / name)).items())

    return read


def asked(split, seed, number):
    """Clips of the embedded world with the questions the benchmark would ask."""
    for index in range(number):
        clip = clip_at(split, seed, index)
        yield clip, pick(questions(clip), 5, rng_of(split, seed, index, "pick"))


@pytest.fixture(scope="session")
def held_out():
    """Questions about 400 clips of the embedded world's test split."""
    return [q for _, chosen in asked("test", 1, 400) for q in chosen]


@pytest.fixture(scope="session")
def training():
    """Questions about 500 clips of its training split."""
    return [q for _, chosen in asked("train", 0, 500) for q in chosen]
