"""Check that a worker has the driver's code of the methods.

The driver names the caches, by the digest of its sources where these are not the released ones. A
worker imports the methods from its own checkout, which may be another one.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from typing import Any

from pipeline.cache.fingerprint import canonical_json
from pipeline.cache.tokens import TokenCache
from pipeline.errors import WorkerError
from tango_core.compressors.base import Compressor
from tango_core.compressors.released import edited_digest
from tango_core.outside_code import is_outside


def raise_if_other_code(
    compressors: Mapping[str, Compressor], caches: Mapping[str, TokenCache]
) -> None:
    """Refuse to fill caches whose names stand for other code than that of this process.

    Args:
        compressors: Cache name -> compressor.
        caches: Cache name -> cache, from the driver.

    Raises:
        WorkerError: In one line that names the host and the method.
    """
    for name, compressor in compressors.items():
        wanted: Mapping[str, Any] = caches[name].settings["compressor"]
        try:
            found = json.loads(canonical_json(_identity(compressor, wanted)))  # as in a manifest
        except ValueError as error:
            raise WorkerError(f"{socket.gethostname()}: {error}") from error
        if found != wanted:
            differs = sorted(
                key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)
            )
            raise WorkerError(
                f"the code of method {wanted['name']!r} on {socket.gethostname()} is not the "
                f"driver's ({', '.join(differs)}): install the same code on every node, and start "
                "its workers anew"
            )


def _identity(compressor: Compressor, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """What decides the tokens in this process."""
    cls = type(compressor)
    if compressor.outer_retention >= 1 or not _came_with_its_code(cls):
        return compressor.identity()
    # It is the driver's, as it was sent; the shipped classes that it derives from are this node's.
    bases = [base for base in cls.__mro__ if issubclass(base, Compressor) and not is_outside(base)]
    if "edited_digest" not in wanted and any(edited_digest(base) for base in bases):
        return {**wanted, "edited_digest": "of this node"}
    return wanted


def _came_with_its_code(cls: type) -> bool:
    """Whether a class was sent by value, and not imported from a file of this node."""
    module = sys.modules.get(cls.__module__)
    return is_outside(cls) and getattr(module, cls.__qualname__, None) is not cls
