"""Health check of the images: exit code 0 while what runs in the container can work.

In a container with a Ray node its raylet must say that it lives; in any other the project must be
importable. Needs the standard library and what the image holds.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

# Where Ray's agent on every node answers; `ray start --dashboard-agent-listen-port` changes it.
RAYLET = "http://127.0.0.1:{port}/api/local_raylet_healthz"
# Ray writes this file on every node that it starts.
RAY_IS_HERE = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray/ray_current_cluster"


def main() -> int:
    """0 if healthy, otherwise 1 with a line that says why."""
    if RAY_IS_HERE.exists():
        url = RAYLET.format(port=os.environ.get("RAY_DASHBOARD_AGENT_PORT", "52365"))
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                text = answer.read().decode()
        except OSError as error:
            return _unhealthy(f"the Ray node of this container does not answer: {error}")
        return 0 if "success" in text else _unhealthy(f"the raylet says {text!r}")
    try:
        import jobs.cli.main  # noqa: F401
    except ImportError as error:
        return _unhealthy(str(error))
    # Looked for, not imported: that would take seconds of every half minute.
    missing = [name for name in ("torch", "ray", "mlflow") if find_spec(name) is None]
    return _unhealthy(f"not installed: {', '.join(missing)}") if missing else 0


def _unhealthy(why: str) -> int:
    """One line for `docker inspect`."""
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
