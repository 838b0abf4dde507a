"""Check that a worker has the same code of the methods as the driver."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from pipeline.cache.directory import TokenCache
from pipeline.cache.fingerprint import canonical_json
from pipeline.errors import WorkerError
from tango_core.compressors.base import Compressor


def raise_if_other_code(
    compressors: Mapping[str, Compressor], caches: Mapping[str, TokenCache]
) -> None:
    """Refuse to fill a cache if this process has other code of the method than the driver.

    Args:
        compressors: Cache name -> compressor.
        caches: Cache name -> cache, from the driver.

    Raises:
        WorkerError: If the code differs; the message names the host and the method.
    """
    for name, compressor in compressors.items():
        wanted: Mapping[str, Any] = caches[name].settings["compressor"]
        found = json.loads(canonical_json(compressor.identity()))  # as in a manifest
        if found != wanted:
            differs = sorted(
                key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)
            )
            raise WorkerError(
                f"the code of method {wanted['name']!r} on {socket.gethostname()} is not the "
                f"driver's ({', '.join(differs)}): install the same code on every node, and "
                "restart its workers"
            )
