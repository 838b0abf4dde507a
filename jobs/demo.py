"""`make demo`: run five methods on generated clips and write a table and a report."""

from __future__ import annotations

import sys
from importlib.resources import files

from jobs.cli.entry import main

NUM_CLIPS = 40


def demo() -> None:
    """Run the sweep of `recipes/shapes_demo.yaml` as its command line would."""
    recipe = files("jobs") / "recipes" / "shapes_demo.yaml"
    print(f"tango sweep {recipe} --limit {NUM_CLIPS}\n", flush=True)
    sys.argv = ["tango", "sweep", str(recipe), "--limit", str(NUM_CLIPS)]
    main()


if __name__ == "__main__":
    demo()
