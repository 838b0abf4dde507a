"""Sending a user's own modules to the workers, which may not be able to import them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ray import cloudpickle

from pipeline.plan import Plan
from tango_core.outside_code import modules_to_send


@contextmanager
def own_code_by_value(plan: Plan) -> Iterator[None]:
    """While active, classes that a plan takes from a user's files are pickled with their code.

    A worker otherwise imports them by name, which fails where the file is not: on another machine,
    or below another directory. Installed packages are still imported by name.
    """
    parts = [
        *plan.compressors.values(),
        *(planned.method.pruner for planned in plan.methods if planned.method.pruner is not None),
        *plan.protocols.values(),
    ]
    modules = {module.__name__: module for part in parts for module in modules_to_send(type(part))}
    for module in modules.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules.values():
            cloudpickle.unregister_pickle_by_value(module)
