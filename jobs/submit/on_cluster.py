"""Start a submitted job on the cluster; `tango submit` uploads this file with the job.

Imports only the standard library, because the cluster may have no tango-video or an older one. The
command runs in `--directory`, so that relative paths in recipes and options always mean the same
directory; Ray would start it in a temporary copy of the package.

    python tango_start.py --version 0.2.0 --directory '~/tango' -- sweep --address auto
"""

from __future__ import annotations

import argparse
import os
import platform
import runpy
import sys
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "tango-video"
RECIPE_FILE = "tango_recipe.yaml"
_GCS = b"--gcs-address="


def main() -> None:
    """Check the version, go to the directory, and run `tango`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", help="Required version; omitted if the code is uploaded.")
    parser.add_argument("--directory", required=True)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if given.version:
        _exit_if_other_version(given.version)
    here = Path(__file__).parent.absolute()
    directory = Path(os.path.expanduser(os.path.expandvars(given.directory))).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.chdir(directory)
    except OSError as error:
        _fail(f"--directory {given.directory} cannot be used on the cluster: {error}")
    python = f"Python {platform.python_version()} ({sys.executable})"
    print(f"tango: {python} on {os.uname().nodename}, in {directory}", file=sys.stderr, flush=True)
    if address := _address_of_raylet():
        os.environ["RAY_ADDRESS"] = address
    command, *options = given.command
    sys.argv = ["tango", command, str(here / RECIPE_FILE), *options]
    runpy.run_module("jobs.cli.entry", run_name="__main__", alter_sys=True)


def _exit_if_other_version(wanted: str) -> None:
    """Exit with a message unless the installed version equals the client's."""
    try:
        found = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        found = "missing"
    if found != wanted:
        _fail(
            f"{DISTRIBUTION} is {found} for {sys.executable} on the cluster, and {wanted} on the "
            f"client; install {DISTRIBUTION}[all]=={wanted} there, or upload the client's with "
            "tango submit --with-code"
        )


def _address_of_raylet() -> str | None:
    """Address of the cluster that started this job, from the command line of its raylet process.

    `RAY_ADDRESS=auto` would mean the cluster started last on this machine, which may be another
    one, such as a user's private Ray on the head. `None` without `/proc`.
    """
    process = os.getpid()
    try:
        while process > 1:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            if Path(os.fsdecode(words[0])).name == "raylet":
                found = [word.partition(b"=")[2] for word in words if word.startswith(_GCS)]
                return found[-1].decode() if found else None
            # The process name is in parentheses and may itself contain parentheses.
            stat = Path(f"/proc/{process}/stat").read_text()
            process = int(stat.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _fail(message: str) -> None:
    """Print a message and exit with the code for user errors."""
    print(f"tango: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
