"""A run is of one set of token caches: one model, dtype, sampling, decoder and code of methods.

The recipe alone does not tell: weights may be trained again in their directory, a package may be
updated. Answers from before and after would stand in one table.
"""

from __future__ import annotations

import json

from jobs.config.recipe import RecipeError
from pipeline.plan import Plan
from pipeline.remote.urls import Place
from pipeline.storage import Storage
from tango_core.local_files import parse_json

CACHES_FILE = "caches.json"


def claim_caches(storage: Storage, run_dir: Place, plan: Plan, *, continued: bool) -> None:
    """Note which cache every method of a run reads; refuse to go on with others.

    Args:
        storage: Of the run directory.
        run_dir: For messages.
        plan: Of the job.
        continued: Whether answers of an earlier attempt stay. Runs of earlier releases do not say
            which caches those came from.

    Raises:
        RecipeError: If answers that stay came from other caches.
    """
    caches = {method.name: method.cache for method in plan.methods}
    if continued and storage.exists(CACHES_FILE):
        before = _read(storage, run_dir)
        changed = [name for name in caches if before.get(name) != caches[name]]
        if changed:
            name = changed[0]
            raise RecipeError(
                f"--resume {run_dir}: {name!r} was answered from the cache {before.get(name)} and "
                f"would go on from {caches[name]}, because the model's files, its dtype, the "
                "decoder or the method's code changed (the two manifest.json say which); start a "
                "new run without --resume or --continue"
            )
    storage.write(CACHES_FILE, f"{json.dumps(caches, indent=1)}\n".encode())


def _read(storage: Storage, run_dir: Place) -> dict[str, object]:
    """Method -> cache, as an earlier attempt noted it."""
    where = run_dir / CACHES_FILE
    try:
        found = parse_json(storage.read(CACHES_FILE).decode(), str(where))
    except ValueError as error:
        raise RecipeError(f"{error}; start a new run without --resume or --continue") from error
    if not isinstance(found, dict):
        raise RecipeError(f"{where} is no list of caches; start a new run without --resume")
    return found
