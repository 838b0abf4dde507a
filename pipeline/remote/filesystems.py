"""fsspec's file systems, opened with bounded waits and with the credentials of the usual chains."""

from __future__ import annotations

from functools import cache
from typing import Any

from pipeline.redaction import redacted

CONNECT_S, READ_S = 10.0, 30.0

# fsspec protocol -> the package that serves it; `jobs/extras.py` knows whose extra it is.
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}


def open_filesystem(scheme: str) -> Any:
    """The file system of a scheme; nothing is asked of the store yet.

    No credentials pass through here: the libraries find them in the environment of the process
    that uses them, so none is pickled on its way to a worker.

    Raises:
        ModuleNotFoundError: If the package is not installed; its `name` says which.
        ValueError: If nothing serves the scheme.
    """
    _raise_if_not_installed(scheme)
    import fsspec

    try:
        opened = fsspec.filesystem(scheme, **_options(scheme))
        if scheme == "s3":
            opened.retries = 1
        return opened
    except ImportError as error:
        package = _PACKAGES.get(scheme) or getattr(error, "name", None)
        raise ModuleNotFoundError(
            f"{scheme}:// cannot be opened: {redacted(str(error))}", name=package
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{redacted(str(error))}; use a local path, s3://, gs:// or hf://"
        ) from error


@cache
def _raise_if_not_installed(scheme: str) -> None:
    """Look for the package without importing it."""
    from importlib.util import find_spec

    package = _PACKAGES.get(scheme)
    if package and find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _options(scheme: str) -> dict[str, Any]:
    """One try per request, because `retries.py` repeats it; no remembered listings."""
    # A remembered listing would hide what others have written since.
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        options["config_kwargs"] = {
            "connect_timeout": CONNECT_S,
            "read_timeout": READ_S,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "max_pool_connections": 32,
        }
    if scheme == "gs":
        options["timeout"] = READ_S
    return options
