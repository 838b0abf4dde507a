"""Refuse to resume a run with another model, decoder, tokenizer or method code.

Between two attempts weights may be retrained in place, a package updated or a method edited.
Answers from before and after such a change must not be mixed in one table.
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
    """Record the caches, code and tokenizer of a run; refuse to continue if they have changed.

    Args:
        storage: Storage of the run directory.
        run_dir: Run directory, for messages.
        plan: Plan of the job.
        continued: Whether answers of an earlier attempt are kept. Runs of earlier releases may
            lack some or all of these records.

    Raises:
        RecipeError: If kept answers came from other caches, code or another tokenizer.
    """
    record = {
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
        for changed in _changes(before, record):
            raise RecipeError(
                f"--resume {run_dir}: {changed}; start a new run without --resume or --continue"
            )
    storage.write(CACHES_FILE, f"{json.dumps(record, indent=1)}\n".encode())


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describe changes since the earlier attempt; entries that it did not record count as equal."""
    for name, cache in now["caches"].items():
        if before["caches"].get(name) != cache:
            yield (
                f"{name!r} was answered from the cache {before['caches'].get(name)} and would now "
                f"use {cache}, because the model's files, its dtype, the decoder or the method's "
                "code changed (compare the manifest.json of the two caches)"
            )
    for name, code in now["code"].items():
        if before.get("code", {}).get(name, code) != code:
            yield f"the code of {name!r} inside the language model has changed"
    if before.get("words", now["words"]) != now["words"]:
        yield "the model's tokenizer, chat template or generation_config.json has changed"


def _read(storage: Storage, run_dir: Place) -> Mapping[str, Any]:
    """The record of an earlier attempt; earlier releases recorded only the caches."""
    where = run_dir / CACHES_FILE
    try:
        found = parse_json(storage.read(CACHES_FILE).decode(), str(where))
    except UserError as error:
        raise RecipeError(f"{error}; start a new run without --resume or --continue") from error
    if not isinstance(found, dict):
        raise RecipeError(f"{where} is not a list of caches; start a new run without --resume")
    return found if isinstance(found.get("caches"), dict) else {"caches": found}
