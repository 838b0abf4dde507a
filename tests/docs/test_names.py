"""What READMEs name exists: files beside them, below them, from the root, or as a test; stages."""

from __future__ import annotations

import re

import pytest
from documented import DOCUMENTS, FILES, ROOT, text_of

from pipeline.clips import STAGES, Pools
from pipeline.resources.pools import ActorPool, TaskPool

# Files that a reader makes, and files of datasets and checkpoints.
_FOREIGN = re.compile(r"(my\w*|mine|utils|recipe|questions|job|index|config|test|lvb_val|sinks)\b")


def named_files(document):
    """Files that a Markdown file names in code, and files that it links to."""
    text = text_of(document)
    spans = " ".join(re.findall(r"`([^`\n]+)`", text) + re.findall(r"```\n(.*?)```", text, re.S))
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    words = re.findall(r"(?<![\w<>*/.{}])[\w./]*\w\.(?:py|yaml|toml)\b", spans)
    return {word for word in words if not _FOREIGN.match(word.rpartition("/")[2])}, set(links)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document):
    folder = (ROOT / document).parent
    words, links = named_files(document)
    known = [
        f"/{name}"
        for name in FILES
        if (ROOT / name).is_relative_to(folder) or re.match(r"tests/.*/test_\w+\.py", name)
    ]
    missing = {word for word in words if not (ROOT / word).exists()}
    assert not {word for word in missing if not any(name.endswith(f"/{word}") for name in known)}
    assert not {link for link in links if not (folder / link).exists()}


@pytest.mark.parametrize("package", ["jobs", "pipeline", "tango_core/models"])
def test_a_readme_with_a_table_of_modules_names_all_of_them(package):
    words = set(re.findall(r"\w+\.py\b", text_of(f"{package}/README.md")))
    modules = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    assert modules
    assert not modules - words


def test_the_diagram_shows_every_stage_in_order_and_how_it_runs():
    blocks = (ROOT / "README.md").read_text().split("```")
    (diagram,) = (block for block in blocks if "──>" in block)
    shown = re.findall(r"(\w+)(?:: [\w ,]+| all questions)? \((?:CPU|GPU) (task|actor)s", diagram)
    kinds = {TaskPool: "task", ActorPool: "actor"}
    declared = [(stage.name, kinds[type(getattr(Pools(), stage.name))]) for stage in STAGES]
    assert shown == declared
