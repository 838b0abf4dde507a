"""Whether a Ray cluster answers at its address, found out in seconds."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from pipeline.errors import ClusterError
from pipeline.redaction import redacted


def raise_if_unreachable(address: str | None) -> None:
    """Ask the port; Ray itself tries an address that does not answer for minutes.

    Args:
        address: `None`, `"auto"`, `host:port` or `ray://host:port`; the first two are not checked.

    Raises:
        ClusterError: If nothing listens at the address.
    """
    parts = urlsplit(address if address and "://" in address else f"//{address}")
    if address in (None, "auto", "local") or parts.hostname is None or parts.port is None:
        return
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=10).close()
    except OSError as error:
        where = redacted(str(address))
        raise ClusterError(f"no Ray cluster at --address {where}: {error}") from error
