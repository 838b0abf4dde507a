"""Entry point of the console script `tango`: reports missing extras before heavy imports.

Imports the standard library alone, so that it works where only numpy and torch are installed.
"""

from __future__ import annotations

import os
import sys

from jobs import exit_codes
from jobs.extras import how_to_install
from jobs.run.interrupt_message import interrupt_message
from pipeline.runtime.stopping import handled


def main() -> None:
    """Run the command line; a package that is missing ends it in one line and exit code 2."""
    open_standard_descriptors()
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


def open_standard_descriptors() -> None:
    """Open what is closed of the descriptors 0, 1 and 2 (`>&- 2>&-`), as nothing.

    The next file or socket would get such a number, and whatever a library prints would go there.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            os.set_inheritable(descriptor, True)


if __name__ == "__main__":
    main()
