"""The entry point of the console script `tango`: says in one line which extra is not installed.

Imports the standard library alone, so that it works where only numpy and torch are installed.
"""

from __future__ import annotations

import os
import sys

from jobs import exit_codes
from jobs.run.last_words import last_words
from pipeline.stopping import handled

# extra of pyproject.toml -> the modules that it brings and that this project imports.
EXTRAS = {
    "models": (
        "PIL",
        "av",
        "decord",
        "huggingface_hub",
        "jinja2",
        "safetensors",
        "tokenizers",
        "transformers",
    ),
    "pipeline": ("fsspec", "pyarrow", "ray", "zlib_ng"),
    "jobs": (
        "duckdb",
        "jinja2",
        "matplotlib",
        "mlflow",
        "packaging",
        "pandas",
        "pathspec",
        "psutil",
        "pyarrow",
        "pydantic",
        "pynvml",
        "rich",
        "starlette",
        "typer",
        "uvicorn",
        "yaml",
    ),
    "s3": ("boto3", "s3fs"),
    "gcs": ("gcsfs",),
    "hf": ("huggingface_hub",),
}


# Only for who keeps files there, so not part of the extra `all`.
STORES = ("s3", "gcs", "hf")


def main() -> None:
    """Run the command line; a package that is missing ends it in one line and exit code 2."""
    open_standard_descriptors()
    try:
        with handled(last_words):
            from jobs.cli.main import main as run

            run()
    except ModuleNotFoundError as error:
        message = explain(error)
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


def explain(error: ModuleNotFoundError) -> str | None:
    """What to install, in one line; `None` if the module belongs to no extra.

    Args:
        error: From an `import`; one that was raised with a text of its own has no `name`.
    """
    if error.name is None:
        return " ".join(str(error).split())
    module = error.name.partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            more = "" if extra in STORES else " (everything: 'tango-video[all]')"
            return (
                f"{module} is not installed; it comes with the extra {extra!r}: "
                f"pip install 'tango-video[{extra}]'{more}"
            )
    return None


if __name__ == "__main__":
    main()
