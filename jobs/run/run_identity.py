"""Refuse to resume a run with another model, decoder, tokenizer or method code.

Weights may be trained again in their directory, a package updated, a method edited. Answers from
before and after must not stand in one table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jobs.config.recipe import RecipeError
from pipeline.plan import Plan
from pipeline.storage import Storage
from pipeline.storage.urls import Place
from tango_core.code_identity import pruner_identity
from tango_core.errors import UserError
from tango_core.local_files import parse_json
from tango_core.models.checkpoints.directory import words_digest

CACHES_FILE = "caches.json"


def claim_caches(storage: Storage, run_dir: Place, plan: Plan, *, continued: bool) -> None:
    """Record what every method of a run reads and runs; refuse to continue with anything else.

    Args:
        storage: Of the run directory.
        run_dir: For messages.
        plan: Of the job.
        continued: Whether answers of an earlier attempt stay. Runs of earlier releases do not
            record which caches those came from, or which code and tokenizer.

    Raises:
        RecipeError: If answers that stay came from others.
    """
    noted = {
        "caches": {method.name: method.cache for method in plan.methods},
        "code": {
            method.name: pruner_identity(type(method.method.pruner))
            for method in plan.methods
            if method.method.pruner is not None
        },
        "words": words_digest(plan.model.path, plan.model.revision),
    }
    if continued and storage.exists(CACHES_FILE):
        before = _read(storage, run_dir)
        for changed in _changes(before, noted):
            raise RecipeError(
                f"--resume {run_dir}: {changed}; start a new run without --resume or --continue"
            )
    storage.write(CACHES_FILE, f"{json.dumps(noted, indent=1)}\n".encode())


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs from the earlier attempt; what it did not record counts as equal."""
    for name, cache in now["caches"].items():
        if before["caches"].get(name) != cache:
            yield (
                f"{name!r} was answered from the cache {before['caches'].get(name)} and would go "
                f"on from {cache}, because the model's files, its dtype, the decoder or the "
                "method's code changed (the two manifest.json say which)"
            )
    for name, code in now["code"].items():
        if before.get("code", {}).get(name, code) != code:
            yield f"the code of {name!r} inside the language model has changed"
    if before.get("words", now["words"]) != now["words"]:
        yield "the model's tokenizer, chat template or generation_config.json has changed"


def _read(storage: Storage, run_dir: Place) -> Mapping[str, Any]:
    """What an earlier attempt recorded; earlier releases wrote the caches alone."""
    where = run_dir / CACHES_FILE
    try:
        found = parse_json(storage.read(CACHES_FILE).decode(), str(where))
    except UserError as error:
        raise RecipeError(f"{error}; start a new run without --resume or --continue") from error
    if not isinstance(found, dict):
        raise RecipeError(f"{where} is no list of caches; start a new run without --resume")
    return found if isinstance(found.get("caches"), dict) else {"caches": found}
