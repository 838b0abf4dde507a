"""Write a checkpoint of a published geometry with random weights, laid out as on the hub.

    python tests/perf/random_checkpoint.py llava-onevision-7b /data/random-7b

To see what a model takes on a machine before its weights are there. Memory stays below half a
gibibyte; equal seeds give equal files.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tango_core.models.random_weights import GEOMETRIES, write_random_checkpoint


def main() -> int:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("geometry", choices=sorted(GEOMETRIES))
    parser.add_argument("directory", type=Path, help="created if needed")
    parser.add_argument("--shrink", type=int, default=1, help="so many times smaller")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, help="directory with the real tokenizer's files")
    given = parser.parse_args()
    started = time.perf_counter()
    try:
        num_bytes = write_random_checkpoint(
            given.geometry,
            given.directory,
            shrink=given.shrink,
            seed=given.seed,
            tokenizer=given.tokenizer,
        )
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.perf_counter() - started
    print(f"{given.directory}: {num_bytes / 1e9:.2f} GB of weights in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
