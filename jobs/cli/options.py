"""Declare commands as functions, and the types and options that several commands share.

A positional parameter of the function is an argument of the command, a keyword-only one an option.
Its help is the text under `Args` in the docstring, unless its type brings one (`Details`).
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import typer

from pipeline.redaction import holds_credentials, redacted
from tango_core.errors import InputError

Command = TypeVar("Command", bound=Callable[..., object])


class Details:
    """Keywords of `typer.Option` or `typer.Argument`, as a part of a parameter's type."""

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords


def command(
    app: typer.Typer, name: str | None = None, *, without: Collection[str] = (), **fixed: Any
) -> Callable[[Command], Command]:
    """Add a function to an app as a command.

    Args:
        app: The app.
        name: Name of the command; `None` for that of the function.
        without: Options of the function that this command does not have.
        fixed: Values of parameters that are not options; `help` is the help of the command.
    """
    summary = fixed.pop("help", None)

    def register(function: Command) -> Command:
        text = inspect.getdoc(function) or ""
        described = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE))
        types = get_type_hints(function, include_extras=True)
        parameters = [
            _declared(one, types[one.name], described.get(one.name, ""))
            for one in inspect.signature(function).parameters.values()
            if one.name not in {*without, *fixed}
        ]
        declared: Any = partial(function, **fixed)
        declared.__signature__ = inspect.Signature(parameters)
        declared.__annotations__ = {one.name: one.annotation for one in parameters}
        own_name = name or function.__name__.strip("_").replace("_", "-")
        app.command(own_name, help=summary or text.partition("\n\nArgs:")[0])(declared)
        return function

    return register


def _declared(parameter: inspect.Parameter, hint: Any, text: str) -> inspect.Parameter:
    """The parameter with the type that typer reads."""
    if hint is typer.Context:
        return parameter.replace(annotation=hint)
    keywords: dict[str, Any] = {"help": " ".join(text.split())}
    kind, *details = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    for one in details:
        keywords |= one.keywords
    if Path in (kind, *get_args(kind)):
        keywords.setdefault("callback", expanded)
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        return parameter.replace(annotation=Annotated[kind, typer.Argument(**keywords)])
    name = parameter.name.strip("_").replace("_", "-")
    names = keywords.pop("names", [f"--{name}"])
    return parameter.replace(annotation=Annotated[kind, typer.Option(*names, **keywords)])


def expanded(value: Any) -> Any:
    """Expand a leading `~`, which a shell leaves alone in quotes; URLs are returned unchanged.

    Raises:
        InputError: If a URL contains credentials, because other users can read command lines.
        BadParameter: If a text is empty (such as an unset shell variable), which would mean the
            working directory.
    """
    if isinstance(value, list):
        return [expanded(one) for one in value]
    if isinstance(value, Path):
        return Path(os.path.expanduser(value))
    if value is None:
        return None
    if not value:
        raise typer.BadParameter("it is empty")
    if holds_credentials(value):
        raise InputError(
            f"{redacted(value)}: take the credentials out of the URL; provide them through the "
            "environment or the configuration files of the object store (AWS_PROFILE, ~/.aws, "
            "GOOGLE_APPLICATION_CREDENTIALS)"
        )
    return value if "://" in value else str(Path(os.path.expanduser(value)))


def width() -> int | None:
    """Maximum width of a table on standard output; `None` if that is no terminal."""
    from rich.console import Console

    from jobs.report.tables.cells import table_width

    console = Console()
    return table_width(console.is_terminal, console.width)


app = typer.Typer(
    name="tango",
    help="Training-free video-token pruning: encode every clip once, compare every method.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RUNS = "runs"
CACHE = "runs/cache"

Location = Annotated[str, Details(callback=expanded)]
"""A path or a URL."""
OptionalLocation = Annotated[str | None, Details(callback=expanded)]
Locations = Annotated[list[str], Details(callback=expanded)]
Number = Annotated[int, Details(min=0)]
Positive = Annotated[int, Details(min=1)]
OptionalPositive = Annotated[int | None, Details(min=1)]


Limit = Annotated[
    str | None,
    Details(
        metavar="N|SHARE",
        help="Only the first N clips of every benchmark, or this share of them, e.g. 0.1.",
    ),
]
Set = Annotated[list[str], Details(help="Change one key: --set method.retention=0.2.")]
Output = Annotated[
    str,
    Details(help="Directory or URL that receives one directory per run.", callback=expanded),
]
Cache = Annotated[
    str | None,
    Details(
        help="Directory or URL of the token caches.  [default: OUTPUT/cache]", callback=expanded
    ),
]
Tracking = Annotated[
    str | None, Details(help="MLflow server or store.  [default: sqlite in OUTPUT]")
]
Address = Annotated[
    str | None, Details(help="Existing Ray cluster: auto, host:port or ray://host:port.")
]
Json = Annotated[bool, Details(help="Print JSON.")]
On = Annotated[
    Literal["common", "all"],
    Details(help="Questions that count where several runs were asked different ones."),
]
Baselines = Annotated[
    list[str],
    Details(
        help="Also compare every cell with this method at the same retention, or with the "
        "'previous' method of the recipe; may be repeated."
    ),
]
