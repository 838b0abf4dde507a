"""Which extra of the package brings a module that is not installed.

Imports the standard library alone, so that it works where only numpy and torch are installed.
"""

from __future__ import annotations

from importlib.util import find_spec

# extra of pyproject.toml -> the modules that it brings and that this project imports.
EXTRAS = {
    "models": (
        *("PIL", "av", "decord", "huggingface_hub", "safetensors", "scipy"),
        *("tokenizers", "transformers"),
    ),
    "pipeline": ("fsspec", "psutil", "pyarrow", "ray", "zlib_ng"),
    "jobs": (
        *("jinja2", "matplotlib", "mlflow", "pandas", "psutil", "pyarrow"),
        *("pydantic", "requests", "rich", "scipy", "starlette", "typer", "uvicorn", "yaml"),
    ),
    "s3": ("boto3", "s3fs"),
    "gcs": ("gcsfs",),
    "hf": ("huggingface_hub",),
}

# Only for who keeps files there, so not part of the extra `all`.
STORES = ("s3", "gcs", "hf")


def raise_if_missing(extra: str) -> None:
    """Raise before a long job does what ends in an import that fails.

    Raises:
        ModuleNotFoundError: If a module of the extra is not installed; `name` is the module.
    """
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"{module} is not installed", name=module)


def how_to_install(error: ModuleNotFoundError) -> str | None:
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
