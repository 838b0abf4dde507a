"""The commands `tango submit` and `tango jobs ...`: jobs on a Ray cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from jobs import exit_codes
from jobs.cli.options import Details, app, command
from jobs.cli.standard_streams import has_no_reader
from pipeline.runtime import process
from tango_core.errors import InputError

if TYPE_CHECKING:
    from jobs.submit.head import Head

jobs = typer.Typer(no_args_is_help=True, help="Jobs that were submitted to a Ray cluster.")

Address = Annotated[
    str | None,
    Details(
        help="Dashboard of the head: http://head, at port 8265 if none is given.  "
        "[default: RAY_ADDRESS]"
    ),
]
JobId = Annotated[str, Details(metavar="ID", help="Id of a job, or its beginning.")]
Json = Annotated[bool, Details(help="Print JSON for scripts.")]
Variables = Annotated[list[str], Details(metavar="NAME[=VALUE]")]


@command(app)
def submit(
    context: typer.Context,
    recipe: Annotated[Path, Details(callback=None)],
    options: Annotated[list[str], Details(metavar="[-- OPTION...]")] = [],
    *,
    address: Address = None,
    command_: Literal["evaluate", "sweep", "precompute"] | None = None,
    directory: str = "~/tango",
    working_dir: Path | None = None,
    include: Annotated[list[Path], Details(metavar="FILE", callback=None)] = [],
    dry_run: bool = False,
    with_code: bool = False,
    python: str = "python",
    env: Variables = [],
    env_visible: Variables = [],
    runtime_env: Path | None = None,
    new: bool = False,
    no_wait: bool = False,
) -> None:
    """Run a recipe on a Ray cluster, and show its log.

    Ctrl-C stops only this command, not the job. Submitting the same job again shows the running
    job, or continues it if it has stopped.

    Args:
        recipe: YAML recipe on this machine.
        options: Options of the command: -- --limit 10 --output /data.
        command_: What to run.  [default: evaluate for one method, sweep for several]
        directory: Directory on the cluster in which the command runs.
        working_dir: Upload this directory, without files that git ignores.
        include: Upload this file of --working-dir although it looks like a secret.
        dry_run: List the files that would be uploaded, and stop.
        with_code: Upload this installation of tango-video.
        python: Interpreter on the cluster.
        env: Environment variable that is not secret; NAME alone takes its local value.
        env_visible: Like --env, but allows secrets: everybody with access to the dashboard can
            read the value, and Ray logs it.
        runtime_env: YAML file with a Ray runtime environment.
        new: Start a new job even if the same job runs or is unfinished.
        no_wait: Print the id and exit.
    """
    from yaml import safe_dump

    from jobs.config.overrides import read_recipe
    from jobs.config.recipe import load_jobs
    from jobs.submit.request import Request, package_files, read_runtime_env, size_line
    from tango_core import __version__

    files = package_files(working_dir, with_code=with_code, include=include)
    changes = changes_in(context, command_ or "sweep", [str(recipe), *options])
    loaded = load_jobs(recipe, changes)
    first = loaded[0]
    is_single = len(loaded) == len(first.all_methods) == len(first.all_benchmarks) == 1
    wanted = command_ or ("evaluate" if is_single else "sweep")
    carries_code = with_code or (working_dir is not None and (working_dir / "tango_core").is_dir())
    request = Request(
        jobs=loaded,
        command=wanted,
        recipe=safe_dump(read_recipe(recipe), allow_unicode=True),
        recipe_name=recipe.name,
        options=tuple(options),
        directory=directory,
        python=python,
        version=None if carries_code else __version__,
        user=process.user(),
        new=new,
        runtime_env=read_runtime_env(runtime_env, env, env_visible),
    )
    if dry_run:
        print("\n".join(sorted(files)))
        _print_message(f"would upload {size_line(files)}")
        return
    from jobs.submit.head import Head

    head = Head(address)
    job_id, is_new = head.submit(request, files)
    what = f"{wanted} {recipe.name}, in {directory}, with {size_line(files)}"
    _print_message(
        f"submitted {job_id} to {head.url}: {what}"
        if is_new
        else f"this job already runs as {job_id} on {head.url}; --new starts another one"
    )
    if no_wait:
        print(job_id)
        return
    _watch(head, job_id)


def changes_in(context: typer.Context, name: str, arguments: list[str]) -> list[str]:
    """Check a command line with the parser of the command that will run; returns its `--set`.

    Args:
        context: Context of `tango submit`.
        name: Command that the cluster will run.
        arguments: Its arguments.

    Raises:
        InputError: If an option cannot be used with submitted jobs.
    """
    parent: Any = context.parent
    parsed = parent.command.commands[name].make_context(name, arguments, parent=parent)
    if parsed.params.get("address") is not None:
        raise InputError(
            "--address is not allowed after --: a submitted job uses the cluster it is submitted "
            "to; remove it"
        )
    return list(parsed.params["set_"])


@command(jobs, "list")
def list_(*, address: Address = None, json: Json = False) -> None:
    """List the jobs of the cluster, the newest last."""
    from jobs.submit.head import Head, as_json, table

    found = Head(address).jobs()
    print(as_json(found) if json else table(found))


@command(jobs)
def status(job: JobId, *, address: Address = None, json: Json = False) -> None:
    """Print a job's status."""
    from jobs.submit.head import Head, as_json, lines

    head = Head(address)
    details = head.ask("get_job_info", head.find(job))
    print(as_json([details]) if json else lines(details))


@command(jobs)
def logs(
    job: JobId,
    *,
    address: Address = None,
    follow: Annotated[bool, Details(names=["--follow", "-f"])] = False,
) -> None:
    """Print a job's log.

    Args:
        follow: Follow the log until the job ends; exit with its exit code.
    """
    from jobs.submit.head import Head

    head = Head(address)
    job_id = head.find(job)
    if follow:
        _watch(head, job_id, ends_with_reader=True)
    print(head.ask("get_job_logs", job_id), end="")


@command(jobs)
def stop(job: JobId, *, address: Address = None) -> None:
    """Stop a job; it keeps finished clips, and can be submitted again."""
    from jobs.submit.head import Head

    head = Head(address)
    job_id = head.find(job)
    stopped = head.ask("stop_job", job_id)
    _print_message(f"{job_id} is stopping" if stopped else f"{job_id} had already ended")


def _watch(head: Head, job_id: str, *, ends_with_reader: bool = False) -> None:
    """Follow a job until it ends and exit with its exit code; Ctrl-C does not stop the job.

    Args:
        head: The cluster.
        job_id: Id of the job.
        ends_with_reader: Whether to exit when standard output is closed.
    """
    from jobs.run.interrupt_message import leaves_behind
    from jobs.submit.head import HeadLostError, exit_code

    how = (
        f"see it with `tango jobs logs -f {job_id} --address {head.url}`, "
        f"stop it with `tango jobs stop {job_id} --address {head.url}`"
    )
    leaves_behind(f"the job keeps running: {how}")

    def write(text: str) -> None:
        print(text, end="", flush=True)
        if ends_with_reader and has_no_reader(sys.stdout):
            raise typer.Exit(exit_codes.OK)

    try:
        details = head.follow(job_id, write)
    except HeadLostError as error:
        raise InputError(
            f"{error}; unless the head is down, the job keeps running: {how}"
        ) from error
    code = exit_code(details)
    reason = f" ({' '.join(details.message.split())[:500]})" if code and details.message else ""
    hint = "; set the Python interpreter with --python" if code == 127 else ""
    _print_message(f"{job_id}: {details.status.value}, exit code {code}{reason}{hint}")
    sys.exit(code)


def _print_message(text: str) -> None:
    """Print a message of this command to stderr, separate from the job's log."""
    print(f"tango: {text}", file=sys.stderr, flush=True)
