"""Entry point of the console script `tango`: reports missing extras before heavy imports.

Imports no optional dependency, so that it works where only numpy and torch are installed.
"""

from __future__ import annotations

import sys

from jobs import exit_codes
from jobs.extras import how_to_install
from jobs.run.interrupt_message import interrupt_message
from pipeline.runtime.stopping import handled


def main() -> None:
    """Run the command line; a missing package gives a one-line message and exit code 2."""
    try:
        with handled(interrupt_message):
            from jobs.cli.main import main as run

            run()
    except ModuleNotFoundError as error:
        message = how_to_install(error)
        if message is None:
            raise
        print(f"tango: {message}", file=sys.stderr)
        sys.exit(exit_codes.MISTAKE)


if __name__ == "__main__":
    main()
