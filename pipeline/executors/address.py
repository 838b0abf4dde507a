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
        ClusterError: If nothing listens at the address, or it cannot be one.
    """
    if address in (None, "auto", "local"):
        return
    where = redacted(str(address))
    try:
        parts = urlsplit(address if "://" in str(address) else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ClusterError(f"--address {where} is no host:port: {error}") from error
    if host is None or port is None:
        return
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        raise ClusterError(f"no Ray cluster at --address {where}: {error}") from error
