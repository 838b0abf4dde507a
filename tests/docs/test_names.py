"""Files that a README names exist: beside it, in a folder below it, from the root, or as a test."""

from __future__ import annotations

import re

import pytest
from documented import DOCUMENTS, ROOT, text_of

from pipeline.clips import STAGES, Pools
from pipeline.resources.pools import ActorPool, TaskPool

# Files that a reader makes, and files of datasets and checkpoints.
_THEIRS = re.compile(r"(my\w*|mine|utils|recipe|questions|job|index|config|test|lvb_val|sinks)\b")


def named_files(document):
    """Python files, recipes and documents that a Markdown file names in code or links to."""
    text = text_of(document)
    spans = " ".join(re.findall(r"`([^`\n]+)`", text))
    spans += " " + " ".join(re.findall(r"```\n(.*?)```", text, re.S))
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    words = re.findall(r"(?<![\w<>*/.{}])[\w./]*\w\.(?:py|yaml|toml)\b", spans)
    return {word for word in words if not _THEIRS.match(word.rpartition("/")[2])}, set(links)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document):
    room = (ROOT / document).parent
    words, links = named_files(document)
    here = [*room.rglob("*"), *(ROOT / "tests").rglob("test_*.py")]
    missing = {
        word
        for word in words
        if not (ROOT / word).exists() and not any(str(path).endswith(f"/{word}") for path in here)
    }
    assert not missing
    assert not {link for link in links if not (room / link).exists()}


@pytest.mark.parametrize("room", ["jobs", "pipeline", "tango_core/models"])
def test_a_readme_with_a_table_of_modules_names_all_of_them(room):
    words = set(re.findall(r"\w+\.py\b", text_of(f"{room}/README.md")))
    here = {path.name for path in (ROOT / room).glob("*.py")} - {"__init__.py"}
    assert here
    assert not here - words


def test_the_diagram_shows_every_stage_in_order_and_how_it_runs():
    diagram = (ROOT / "README.md").read_text().split("```")[1]
    shown = re.findall(r"(\w+)(?:: [\w ,]+| all questions)? \((?:CPU|GPU) (task|actor)s", diagram)
    kinds = {TaskPool: "task", ActorPool: "actor"}
    declared = [(stage.name, kinds[type(getattr(Pools(), stage.name))]) for stage in STAGES]
    assert shown == declared
