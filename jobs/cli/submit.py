"""The commands `tango submit` and `tango jobs ...`: jobs on a Ray cluster, from outside of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from jobs import exit_codes
from jobs.cli.path_checks import check_names
from jobs.cli.standard_streams import has_no_reader
from jobs.cli.submit_options import read_resources, read_runtime_env, split_options
from pipeline.runtime import process
from tango_core.errors import InputError

if TYPE_CHECKING:
    from jobs.submit.head import Head

jobs = typer.Typer(no_args_is_help=True, help="Jobs that were submitted to a Ray cluster.")

Address = Annotated[
    str | None,
    typer.Option(
        help="Dashboard of the head: http://head, at port 8265 if none is given.  "
        "[default: RAY_ADDRESS]"
    ),
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of a job, or its beginning.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def submit(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="YAML recipe on this machine.")],
    options: Annotated[
        list[str],
        typer.Argument(
            metavar="[-- OPTION...]", help="Options of the command: -- --limit 10 --output /data."
        ),
    ] = [],  # noqa: B006
    address: Address = None,
    command: Annotated[
        Literal["evaluate", "sweep", "precompute"] | None,
        typer.Option(help="What to run.  [default: evaluate for one method, sweep for several]"),
    ] = None,
    directory: Annotated[
        str, typer.Option(help="Directory on the cluster in which the command runs.")
    ] = "~/tango",
    working_dir: Annotated[
        Path | None, typer.Option(help="Send this directory along, without what git ignores.")
    ] = None,
    include: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="Send this file of it although it looks like a secret."),
    ] = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files that would be sent, and send nothing.")
    ] = False,
    with_code: Annotated[
        bool, typer.Option("--with-code", help="Send this installation of tango-video along.")
    ] = False,
    python: Annotated[str, typer.Option(help="Interpreter on the cluster.")] = "python",
    env: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Environment variable that is no secret; NAME alone: as it is here.",
        ),
    ] = [],  # noqa: B006
    env_visible: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=VALUE]",
            help="The same for a secret: everybody who reaches the dashboard can read it "
            "there, and it stands in Ray's logs.",
        ),
    ] = [],  # noqa: B006
    runtime_env: Annotated[
        Path | None, typer.Option(help="YAML file with a Ray runtime environment.")
    ] = None,
    entrypoint_num_cpus: Annotated[
        float | None, typer.Option(min=0, help="CPUs that the driver reserves.")
    ] = None,
    entrypoint_num_gpus: Annotated[
        float | None, typer.Option(min=0, help="GPUs that the driver reserves.")
    ] = None,
    entrypoint_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that the driver reserves: 8GiB.")
    ] = None,
    entrypoint_resource: Annotated[
        list[str],
        typer.Option(metavar="NAME=AMOUNT", help="Custom resource that the driver reserves."),
    ] = [],  # noqa: B006
    new: Annotated[
        bool, typer.Option("--new", help="Start anew even if the same job runs or is unfinished.")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print the id and leave.")] = False,
) -> None:
    """Run a recipe on a Ray cluster, show its log, and end with its exit code.

    Ctrl-C leaves; the job goes on. The same job submitted again is found where it runs, or
    continued where it stopped.
    """
    from jobs.config.recipe import listed_inputs, load_jobs
    from jobs.run.single import single
    from jobs.submit.package import package_files, size_line
    from jobs.submit.request import Request, default_command, raise_if_secret

    files = package_files(working_dir, with_code=with_code, include=include)
    changes, rest = split_options(context, command or "sweep", recipe, options)
    raise_if_secret(rest)
    loaded = load_jobs(recipe, changes, elsewhere=True)
    wanted = command or default_command(loaded)
    if wanted == "evaluate" and len(loaded) > 1:
        raise InputError(
            f"{recipe}: model.{' and model.'.join(listed_inputs(loaded))} lists several values; "
            "submit it with --command sweep"
        )
    if wanted == "evaluate":
        single(loaded[0])
    check_names(loaded)
    from jobs.submit.head import Head
    from tango_core import __version__

    carries_code = with_code or (working_dir is not None and (working_dir / "tango_core").is_dir())
    request = Request(
        jobs=loaded,
        command=wanted,
        recipe_name=recipe.name,
        options=tuple(rest),
        directory=directory,
        python=python,
        version=None if carries_code else __version__,
        user=process.user(),
        new=new,
        runtime_env=read_runtime_env(runtime_env, env, env_visible),
        resources=read_resources(
            entrypoint_num_cpus, entrypoint_num_gpus, entrypoint_memory, entrypoint_resource
        ),
    )
    for root in sorted({str(s.root) for job in loaded for s in job.all_benchmarks if s.root}):
        if not root.startswith(("/", "~")) and "://" not in root:
            _say(
                f"benchmark.root {root} is relative: the cluster looks for it in {directory}, "
                "not in --working-dir; give an absolute path there, or a URL"
            )
    if dry_run:
        for name in sorted(files):
            print(name)
        _say(f"would send {size_line(files)}")
        return
    head = Head(address)
    from jobs.submit.submit import submit

    if files:
        _say(f"sending {size_line(files)}")
    sent = submit(request, head, files=files)
    if sent.attached:
        _say(f"this job runs already as {sent.job_id} on {head.url}; --new starts another one")
    else:
        _say(f"submitted {sent.job_id} to {head.url}: {wanted} {recipe.name}, in {directory}")
    if no_wait:
        print(sent.job_id)
        return
    _watch(head, sent.job_id, _write)


@jobs.command("list")
def list_(address: Address = None, json: Json = False) -> None:
    """List the jobs of the cluster, the newest last."""
    from jobs.submit.follow import as_json, table
    from jobs.submit.head import Head

    head = Head(address)
    found = head.jobs()
    if json:
        print(as_json(found))
    else:
        print(table(found) if found else f"no jobs of tango on {head.url}")


@jobs.command()
def status(job: JobId, address: Address = None, json: Json = False) -> None:
    """Say how a job is."""
    from jobs.submit.follow import as_json, lines
    from jobs.submit.head import Head

    head = Head(address)
    details = head.details(head.find(job))
    print(as_json([details]) if json else lines(details))


@jobs.command()
def logs(
    job: JobId,
    address: Address = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on until the job is over; end with its exit code."),
    ] = False,
) -> None:
    """Print what a job has printed."""
    from jobs.submit.head import Head

    head = Head(address)
    job_id = head.find(job)
    if follow:
        _watch(head, job_id, _write_to_reader)
    _write(head.log(job_id))


@jobs.command()
def stop(job: JobId, address: Address = None) -> None:
    """Stop a job; what it has finished is kept, and submitting it again continues it."""
    from jobs.submit.head import Head

    head = Head(address)
    job_id = head.find(job)
    stopped = head.stop(job_id)
    _say(f"{job_id} is stopping" if stopped else f"{job_id} was over already")


def _watch(head: Head, job_id: str, write: Callable[[str], None]) -> None:
    """Show a job until it is over and leave with its exit code; Ctrl-C leaves the job alone."""
    from jobs.run.last_words import leaves_behind
    from jobs.submit.follow import LostError, exit_code, follow

    how = (
        f"see it with `tango jobs logs -f {job_id} --address {head.url}`, "
        f"stop it with `tango jobs stop {job_id} --address {head.url}`"
    )
    leaves_behind(f"the job goes on: {how}")
    try:
        details = follow(head, job_id, write)
    except LostError as error:
        raise InputError(
            f"{error}; the job goes on unless the head is gone: {how}; submitting it again "
            "continues it"
        ) from error
    code = exit_code(details)
    text = f"{job_id}: {details.status.value}, exit code {code}"
    if details.driver_exit_code is None and code == 2:
        text += f" ({' '.join((details.message or 'no reason is known').split())[:500]})"
    if code == 127:
        text += "; the cluster does not find the interpreter, name it with --python"
    _say(text)
    sys.exit(code)


def _write(text: str) -> None:
    """What a job has printed, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_to_reader(text: str) -> None:
    """The same; ends the command where nobody reads it: printing is all that it does."""
    _write(text)
    if has_no_reader(sys.stdout):
        raise typer.Exit(exit_codes.OK)


def _say(text: str) -> None:
    """What the client itself has to say, apart from the job's output."""
    print(f"tango: {text}", file=sys.stderr, flush=True)
