"""Options and arguments shared by several commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pipeline.redaction import holds_credentials, redacted
from tango_core.errors import InputError


def expanded(path: Path | None) -> Path | None:
    """Expand a leading `~`, which a shell leaves alone in quotes."""
    return None if path is None else Path(os.path.expanduser(path))


def expanded_text(place: str | None) -> str | None:
    """Expand a leading `~` of a path; URLs are returned unchanged.

    Raises:
        InputError: If a URL contains credentials, because other users can read command lines.
        BadParameter: If it is empty (such as an unset shell variable), which would mean the
            working directory.
    """
    if place is None:
        return None
    if not place:
        raise typer.BadParameter("it is empty")
    if holds_credentials(place):
        raise InputError(
            f"{redacted(place)}: take the credentials out of the URL; provide them through the "
            "environment or the configuration files of the object store (AWS_PROFILE, ~/.aws, "
            "GOOGLE_APPLICATION_CREDENTIALS)"
        )
    return place if "://" in place else str(Path(os.path.expanduser(place)))


def expanded_all(paths: list[Path]) -> list[Path]:
    """Expand a leading `~` of several paths."""
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
    typer.Option(min=0.001, help="Maximum size of a node's cache of downloaded videos, in GiB."),
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
        help="Continue this run; failed clips are retried.",
        callback=expanded_text,
    ),
]
Steal = Annotated[bool, typer.Option("--steal", help="Take over the run from a running driver.")]
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
    bool, typer.Option("--features", help="Also store the encoder's features of every clip.")
]
HashContent = Annotated[
    bool, typer.Option("--hash-content", help="Identify video files by their bytes.")
]
RUNS = "runs"


Only = Annotated[
    bool, typer.Option("--dry-run", help="Estimate time and memory, and do not start the job.")
]
Probe = Annotated[bool, typer.Option("--probe", help="With --dry-run: measure ten clips now.")]
Price = Annotated[
    float | None,
    typer.Option(
        min=0, max=1e9, help="With --dry-run: price of all nodes per hour, to estimate the cost."
    ),
]


Quiet = Annotated[bool, typer.Option("--quiet", help="Print only results, warnings and errors.")]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON event per line on stdout; everything else goes to stderr."
    ),
]
