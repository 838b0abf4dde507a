"""What `tango list` prints: methods, models, benchmarks and recipes, one line each."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from huggingface_hub import try_to_load_from_cache

from jobs.config.overrides import RECIPES, read_recipe
from jobs.report.formatting import DASH, Table
from tango_core.benchmarks import BENCHMARKS, benchmark_class
from tango_core.compressors import CONTROLS, METHODS, build_method
from tango_core.compressors.options import option_names as method_options
from tango_core.extensions import announced
from tango_core.models import MODELS
from tango_core.models.options import option_names

Listed = Literal["methods", "models", "benchmarks", "recipes"]

_ARXIV = re.compile(r"arxiv(?:\.org/abs/|[: ])\s*(\d{4}\.\d{5})", re.IGNORECASE)


class Entry(NamedTuple):
    """One line of `tango list`."""

    name: str
    what: str
    source: str
    needs: str


def entries(kind: Listed) -> list[Entry]:
    """Everything of one kind, own extensions of installed packages included."""
    found = {"methods": _methods, "models": _models, "benchmarks": _benchmarks, "recipes": _recipes}
    singular: Any = kind.removesuffix("s")
    own = {} if kind == "recipes" else announced(singular)
    installed = [
        Entry(name, point.value, f"package {point.dist.name}" if point.dist else DASH, DASH)
        for name, point in own.items()
    ]
    return [*found[kind](), *installed]


def table(kind: Listed, max_width: int | None = None) -> str:
    """The entries as aligned text; the ends of long lines are cut to `max_width`."""
    most = 30 if max_width else None
    rows = [(one.name, one.source, one.needs[:most], one.what) for one in entries(kind)]
    lines = Table((kind[:-1], "from", "needs", "what it is"), rows).plain(right=(), rule=True)
    return "\n".join(line[:max_width] for line in lines)


def _summary(text: str | None, *, titled: bool = True) -> str:
    """The first line of a docstring, without the full stop and a title before a colon."""
    first = (text or "").strip().partition("\n")[0].rstrip(".")
    what = (titled and first.partition(": ")[2]) or first
    return what[:1].upper() + what[1:]


def _methods() -> Iterator[Entry]:
    shared = Counter(cls.__module__ for cls in METHODS.values())
    for name, cls in METHODS.items():
        text = str(sys.modules[cls.__module__].__doc__)
        alone = shared[cls.__module__] == 1
        what = _summary(text if alone else cls.__doc__, titled=alone)
        paper, title = _ARXIV.search(text), re.search(r'"(.+?)[:"]', " ".join(text.split()))
        source = f"arXiv {paper[1]}" if paper else f"paper {title[1]}" if title else DASH
        options: dict[str, Any] = {"retention": 0.2} if "retention" in method_options(cls) else {}
        method = build_method(name, **options)
        needs = sorted(signal.replace("_", " ") for signal in method.compressor.needs)
        needs += ["the question"] if method.compressor.question_field else []
        needs += ["engine native"] if method.pruner else []
        if not alone:
            source = "control" if name in CONTROLS else "baseline"
        yield Entry(name, what, source, ", ".join(needs) or "nothing")


def _models() -> Iterator[Entry]:
    for name, model in MODELS.items():
        family = model.load_family()
        options = ", ".join(option_names(family.options)) or "none"
        engines = " and ".join(family.engines)
        what = f"{model.num_frames} frames; options {options}; engine {engines}"
        if model.path is None:
            yield Entry(name, what, "this package", "nothing")
            continue
        here = isinstance(try_to_load_from_cache(model.path, "config.json"), str)
        yield Entry(name, what, model.path, "nothing" if here else "download")


def _benchmarks() -> Iterator[Entry]:
    for name in BENCHMARKS:
        cls = benchmark_class(name)
        _, *part = cls.title.split(", ")  # of a benchmark with several parts
        what = ", ".join([_summary(sys.modules[cls.__module__].__doc__), *part])
        if not cls.releases:
            made = name == "shapes"
            source = "generated" if made else "files of yours"
            yield Entry(name, what, source, "nothing" if made else "benchmark.root")
            continue
        release = cls.releases[0]
        terms = " on accepted terms" if release.gated else ""
        yield Entry(name, what, release.repository, f"download{terms}")


def _recipes() -> Iterator[Entry]:
    for path in sorted(RECIPES.glob("*.yaml")):
        content, text = read_recipe(path), path.read_text(encoding="utf-8")
        comment = " ".join(re.findall(r"^# (.*)", text.partition("\n#   ")[0], re.MULTILINE))
        what = re.split(r"[.:;?] ", comment.rstrip("."))[0]
        sections = content.get("benchmarks") or [content["benchmark"]]
        needs = [content["model"]["name"], *(section["name"] for section in sections)]
        yield Entry(path.stem, what, "this package", ", ".join(needs))
