"""Where a result comes from: which code, which processor, which libraries."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = (
    "tango-video",
    "ray",
    "torch",
    "transformers",
    "av",
    "decord",
    "pyarrow",
    "pandas",
    "mlflow",
    "numpy",
)


def git_commit() -> str:
    """Commit of the code, or "" outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def device_name(wanted: str) -> str:
    """The processor in words."""
    import torch

    if wanted != "cpu" and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{platform.machine()} CPU"


def float32_products() -> dict[str, str]:
    """Operation -> how precisely models multiply float32 on a GPU; see `full_precision`.

    This is what is set in the driver; a worker whose own environment sets something else, as
    `TORCH_ALLOW_TF32_CUBLAS_OVERRIDE` does, is not asked. What chooses tokens does not depend on
    it.
    """
    from tango_core.ops.precision import float32_products

    return float32_products()


def versions() -> dict[str, str]:
    """Versions of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
