"""The commands `tango submit` and `tango jobs ...`: jobs on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
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
    """Run a recipe on a Ray cluster, show its log, and exit with its exit code.

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
    from jobs.submit.request import (
        Request,
        jobs_to_submit,
        package_files,
        read_runtime_env,
        size_line,
    )
    from tango_core import __version__

    files = package_files(working_dir, with_code=with_code, include=include)
    changes, rest = split_options(context, command_ or "sweep", recipe, options)
    wanted, loaded = jobs_to_submit(recipe, changes, command_)
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
    )
    for root in sorted({str(s.root) for job in loaded for s in job.all_benchmarks if s.root}):
        if not root.startswith(("/", "~")) and "://" not in root:
            _print_message(
                f"benchmark.root {root} is a relative path: on the cluster it is resolved in "
                f"{directory}, not in --working-dir; give an absolute path on the cluster or a URL"
            )
    if dry_run:
        for name in sorted(files):
            print(name)
        _print_message(f"would upload {size_line(files)}")
        return
    from jobs.submit.head import Head

    head = Head(address)
    if files:
        _print_message(f"uploading {size_line(files)}")
    job_id, is_new = head.submit(request, files)
    if is_new:
        _print_message(f"submitted {job_id} to {head.url}: {wanted} {recipe.name}, in {directory}")
    else:
        _print_message(f"this job already runs as {job_id} on {head.url}; --new starts another one")
    if no_wait:
        print(job_id)
        return
    _watch(head, job_id, _write)


@command(jobs, "list")
def list_(*, address: Address = None, json: Json = False) -> None:
    """List the jobs of the cluster, the newest last."""
    from jobs.submit.head import Head, as_json, table

    head = Head(address)
    found = head.jobs()
    if json:
        print(as_json(found))
    else:
        print(table(found) if found else f"no jobs of tango on {head.url}")


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
        _watch(head, job_id, _write_to_reader)
    _write(head.ask("get_job_logs", job_id))


@command(jobs)
def stop(job: JobId, *, address: Address = None) -> None:
    """Stop a job; finished clips are kept, and submitting the job again continues it."""
    from jobs.submit.head import Head

    head = Head(address)
    job_id = head.find(job)
    stopped = head.ask("stop_job", job_id)
    _print_message(f"{job_id} is stopping" if stopped else f"{job_id} had already ended")


def _watch(head: Head, job_id: str, write: Callable[[str], None]) -> None:
    """Follow a job until it ends and exit with its exit code; Ctrl-C does not stop the job."""
    from jobs.run.interrupt_message import leaves_behind
    from jobs.submit.head import HeadLostError, exit_code

    how = (
        f"see it with `tango jobs logs -f {job_id} --address {head.url}`, "
        f"stop it with `tango jobs stop {job_id} --address {head.url}`"
    )
    leaves_behind(f"the job keeps running: {how}")
    try:
        details = head.follow(job_id, write)
    except HeadLostError as error:
        raise InputError(
            f"{error}; the job keeps running unless the head node is down: {how}; submitting it "
            "again continues it"
        ) from error
    code = exit_code(details)
    text = f"{job_id}: {details.status.value}, exit code {code}"
    if details.driver_exit_code is None and code == 2:
        text += f" ({' '.join((details.message or 'reason unknown').split())[:500]})"
    if code == 127:
        text += "; the cluster did not find the Python interpreter: set it with --python"
    _print_message(text)
    sys.exit(code)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_to_reader(text: str) -> None:
    """Write a part of a job's log, or exit if stdout is closed."""
    _write(text)
    if has_no_reader(sys.stdout):
        raise typer.Exit(exit_codes.OK)


def _print_message(text: str) -> None:
    """Print a message of this command to stderr, separate from the job's log."""
    print(f"tango: {text}", file=sys.stderr, flush=True)


# Parameters that this command sets itself and does not pass on.
_NOT_PASSED_ON = {"continue_", "recipe", "set_"}


def split_options(
    context: typer.Context, name: str, recipe: Path, options: list[str]
) -> tuple[list[str], list[str]]:
    """Parse the options after `--` with the parser of the command that will run.

    Args:
        context: Context of `tango submit`.
        name: Command that the cluster will run.
        recipe: The recipe file.
        options: Options after `--`.

    Returns:
        Options that change the recipe, as `--set` strings, and the other options, which are passed
        to the command on the cluster.

    Raises:
        InputError: If an option cannot be used with submitted jobs.
    """
    from jobs.config.recipe import Job

    parent: Any = context.parent
    arguments = [str(recipe), *options]
    parsed = parent.command.commands[name].make_context(name, [*arguments], parent=parent)
    # Unconverted values: `~` must be expanded on the cluster, not here.
    given, _, _ = parsed.command.make_parser(parsed).parse_args([*arguments])
    if given.get("address") is not None:
        raise InputError(
            "--address is not allowed after --: a submitted job uses the cluster it is submitted "
            "to; remove it"
        )
    # Options that equal a recipe key. Not `cache`: the key is a section, `--cache` is a path.
    keys = {one.name for one in fields(Job)} - {"cache"}
    changes, rest = list(parsed.params.get("set_", ())), list[str]()
    for option in parsed.command.params:
        value = given.get(option.name)
        if value is None or option.name in _NOT_PASSED_ON:
            continue
        if option.name in keys:
            changes.append(f"{option.name}={value}")
        else:
            rest += [option.opts[0]] if option.is_flag else [option.opts[0], str(value)]
    return changes, rest
