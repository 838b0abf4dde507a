"""Options and arguments that several commands share; a `~` in a path is the home directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pipeline.redaction import holds_credentials, redacted
from tango_core.errors import InputError


def expanded(path: Path | None) -> Path | None:
    """The path with a leading `~` replaced, as a shell does where it is not quoted."""
    return None if path is None else Path(os.path.expanduser(path))


def expanded_text(place: str | None) -> str | None:
    """The same for a place that may be a URL; one with a password in it is refused.

    Raises:
        ValueError: For credentials in a URL: command lines can be read by everybody.
        BadParameter: For "", as of a variable that is not set: it would be the working directory.
    """
    if place is None:
        return None
    if not place:
        raise typer.BadParameter("it is empty")
    if holds_credentials(place):
        raise InputError(
            f"{redacted(place)}: take the credentials out of the URL; object stores find them in "
            "the environment or in their own files (AWS_PROFILE, ~/.aws, "
            "GOOGLE_APPLICATION_CREDENTIALS)"
        )
    return place if "://" in place else str(Path(os.path.expanduser(place)))


def expanded_all(paths: list[Path]) -> list[Path]:
    """The same for several paths."""
    return [Path(os.path.expanduser(path)) for path in paths]


Recipe = Annotated[
    Path,
    typer.Argument(
        help="YAML recipe, e.g. one of jobs/recipes.", show_default=False, callback=expanded
    ),
]
Set = Annotated[
    list[str], typer.Option("--set", help="Change one key: --set method.retention=0.2.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Only the first N clips of every benchmark.")
]
Output = Annotated[
    str,
    typer.Option(
        help="Directory or URL that receives one directory per run.", callback=expanded_text
    ),
]
VideoCacheGib = Annotated[
    float | None,
    typer.Option(min=0.001, help="Bound of the videos that a node keeps of a store, in GiB."),
]
Cache = Annotated[
    str | None,
    typer.Option(
        help="Directory or URL of the token caches.  [default: OUTPUT/cache]",
        callback=expanded_text,
    ),
]
Tracking = Annotated[
    str | None, typer.Option(help="MLflow server or store.  [default: sqlite in OUTPUT]")
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="Continue this run; failed clips are tried again.",
        callback=expanded_text,
    ),
]
Steal = Annotated[bool, typer.Option("--steal", help="Resume even a run that a driver works on.")]
Continue = Annotated[bool, typer.Option("--continue", help="Resume this job's unfinished run.")]
Address = Annotated[
    str | None, typer.Option(help="Existing Ray cluster: auto, host:port or ray://host:port.")
]
Shard = Annotated[
    str | None, typer.Option(metavar="I/N", help="Only every N-th clip, from the I-th (0-based).")
]
Mode = Annotated[str | None, typer.Option(help="throughput or profile.")]
Controls = Annotated[
    bool,
    typer.Option("--controls", help="Add the controls at the recipe's retentions; sweep only."),
]
Features = Annotated[
    bool, typer.Option("--features", help="Store what the encoder gives, too, of every clip.")
]
HashContent = Annotated[
    bool, typer.Option("--hash-content", help="Identify video files by their bytes.")
]
RUNS = "runs"


Only = Annotated[
    bool, typer.Option("--dry-run", help="Say what the job will take, and do not start it.")
]
Probe = Annotated[bool, typer.Option("--probe", help="With --dry-run: measure ten clips now.")]
Price = Annotated[
    float | None,
    typer.Option(
        min=0, max=1e9, help="With --dry-run: what all nodes cost together, for the cost."
    ),
]


Quiet = Annotated[bool, typer.Option("--quiet", help="Only results, warnings and errors.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON event per line on standard output; the rest on error."),
]
