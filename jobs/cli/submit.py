"""The commands `tango submit` and `tango jobs ...`: jobs on a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from jobs import exit_codes
from jobs.cli.standard_streams import has_no_reader
from pipeline.redaction import is_secret
from pipeline.runtime import process
from tango_core.errors import InputError

if TYPE_CHECKING:
    from jobs.config.recipe import Job
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
        Path | None, typer.Option(help="Upload this directory, without files that git ignores.")
    ] = None,
    include: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Upload this file of --working-dir although it looks like a secret.",
        ),
    ] = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files that would be uploaded, and stop.")
    ] = False,
    with_code: Annotated[
        bool, typer.Option("--with-code", help="Upload this installation of tango-video.")
    ] = False,
    python: Annotated[str, typer.Option(help="Interpreter on the cluster.")] = "python",
    env: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Environment variable that is not secret; NAME alone takes its local value.",
        ),
    ] = [],  # noqa: B006
    env_visible: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Like --env, but allows secrets: everybody with access to the dashboard can read "
            "the value, and Ray logs it.",
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
        bool,
        typer.Option("--new", help="Start a new job even if the same job runs or is unfinished."),
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print the id and exit.")] = False,
) -> None:
    """Run a recipe on a Ray cluster, show its log, and exit with its exit code.

    Ctrl-C stops only this command, not the job. Submitting the same job again shows the running
    job, or continues it if it has stopped.
    """
    from jobs.config.recipe import listed_inputs, load_jobs, single_job
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
        single_job(loaded[0])
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
            _print_message(
                f"benchmark.root {root} is a relative path: on the cluster it is resolved in "
                f"{directory}, not in --working-dir; give an absolute path on the cluster or a URL"
            )
    if dry_run:
        for name in sorted(files):
            print(name)
        _print_message(f"would upload {size_line(files)}")
        return
    head = Head(address)
    from jobs.submit.submit import submit

    if files:
        _print_message(f"uploading {size_line(files)}")
    sent = submit(request, head, files=files)
    if sent.attached:
        _print_message(
            f"this job already runs as {sent.job_id} on {head.url}; --new starts another one"
        )
    else:
        _print_message(
            f"submitted {sent.job_id} to {head.url}: {wanted} {recipe.name}, in {directory}"
        )
    if no_wait:
        print(sent.job_id)
        return
    _watch(head, sent.job_id, _write)


def check_names(jobs: Sequence[Job]) -> None:
    """Check the names and options of jobs that run on another machine.

    Paths are not checked, because they refer to that machine, nor are classes named as
    `module:attribute`, which may be installed only there.

    Raises:
        UserError: If a name or an option is wrong; the message names the setting.
    """
    from jobs.config.methods import raise_if_wrong_methods
    from tango_core.benchmarks import benchmark_class
    from tango_core.extensions import is_reference
    from tango_core.models import model_entry

    for job in jobs:
        name = job.model.name
        wording = None if is_reference(name) else model_entry(name).load_family().wording
        for section in job.all_benchmarks:
            if not is_reference(section.name):
                found = benchmark_class(section.name)
                found.check_names(section.split, section.protocol)
                found.check_subtitles(section.subtitles, section.protocol, wording)
        methods = (one for one in job.all_methods if not is_reference(one[1]["name"]))
        raise_if_wrong_methods(methods)


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
    """Print a job's status."""
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
        typer.Option(
            "--follow", "-f", help="Follow the log until the job ends; exit with its exit code."
        ),
    ] = False,
) -> None:
    """Print a job's log."""
    from jobs.submit.head import Head

    head = Head(address)
    job_id = head.find(job)
    if follow:
        _watch(head, job_id, _write_to_reader)
    _write(head.log(job_id))


@jobs.command()
def stop(job: JobId, address: Address = None) -> None:
    """Stop a job; finished clips are kept, and submitting the job again continues it."""
    from jobs.submit.head import Head

    head = Head(address)
    job_id = head.find(job)
    stopped = head.stop(job_id)
    _print_message(f"{job_id} is stopping" if stopped else f"{job_id} had already ended")


def _watch(head: Head, job_id: str, write: Callable[[str], None]) -> None:
    """Follow a job until it ends and exit with its exit code; Ctrl-C does not stop the job."""
    from jobs.run.interrupt_message import leaves_behind
    from jobs.submit.follow import LostError, exit_code, follow

    how = (
        f"see it with `tango jobs logs -f {job_id} --address {head.url}`, "
        f"stop it with `tango jobs stop {job_id} --address {head.url}`"
    )
    leaves_behind(f"the job keeps running: {how}")
    try:
        details = follow(head, job_id, write)
    except LostError as error:
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
    """Write a part of a job's log to stdout."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_to_reader(text: str) -> None:
    """Like `_write`, but exit when stdout is closed."""
    _write(text)
    if has_no_reader(sys.stdout):
        raise typer.Exit(exit_codes.OK)


def _print_message(text: str) -> None:
    """Print a message of this command to stderr, separate from the job's log."""
    print(f"tango: {text}", file=sys.stderr, flush=True)


# Parameters that this command sets itself and does not pass on.
_NOT_PASSED_ON = {"address", "continue_", "recipe", "set_"}


def split_options(
    context: typer.Context, command: str, recipe: Path, options: list[str]
) -> tuple[list[str], list[str]]:
    """Parse the options after `--` with the parser of the command that will run.

    Args:
        context: Context of `tango submit`.
        command: Command that the cluster will run.
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
    parsed = parent.command.commands[command].make_context(command, [*arguments], parent=parent)
    # Unconverted values: `~` must be expanded on the cluster, not here.
    written, _, _ = parsed.command.make_parser(parsed).parse_args([*arguments])
    given = {
        one.name: (one, parsed.params[one.name])
        for one in parsed.command.params
        if one.name in parsed.params and parsed.get_parameter_source(one.name).name == "COMMANDLINE"
    }
    if "address" in given:
        raise InputError(
            "--address is not allowed after --: a submitted job uses the cluster it is submitted "
            "to; remove it"
        )
    # Options that equal a recipe key. Not `cache`: the key is a section, `--cache` is a path.
    keys = {one.name for one in fields(Job)} - {"cache"}
    changes = list(parsed.params.get("set_", ()))
    changes += [f"{name}={value}" for name, (_, value) in given.items() if name in keys]
    rest: list[str] = []
    for name, (option, _) in given.items():
        if name in _NOT_PASSED_ON or name in keys:
            continue
        value = written[name]
        for one in value if isinstance(value, (list, tuple)) else [value]:
            rest += [option.opts[0]] if option.is_flag else [option.opts[0], str(one)]
    return changes, rest


def read_runtime_env(
    path: Path | None, variables: list[str], visible: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Build Ray's runtime environment from a file and from variables.

    Everybody with access to Ray's dashboard can read it, and Ray logs it.

    Args:
        path: YAML file, or `None`.
        variables: `NAME=VALUE`, or `NAME` for its local value.
        visible: Like `variables`, but secrets are allowed.

    Raises:
        InputError: If the file is not a runtime environment, a variable is not set, or a variable
            outside of `visible` looks like a secret.
    """
    from jobs.config.bounded_yaml import YamlError, load_yaml

    content: Any = {}
    if path is not None:
        try:
            content = load_yaml(path.read_bytes()) or {}
        except YamlError as error:
            raise InputError(f"--runtime-env {path} {error}") from error
        except OSError as error:
            raise InputError(f"--runtime-env {path} cannot be read: {error.strerror}") from error
        if not isinstance(content, dict) or "working_dir" in content:
            raise InputError(
                f"--runtime-env {path}: must be a mapping such as {{pip: [...], env_vars: "
                "{...}} without working_dir; use --working-dir for that"
            )
    found = _variables(path, content.get("env_vars") or {})
    shown = _parse_variables("--env-visible", visible)
    for option, values in (
        (f"env_vars of --runtime-env {path}", {**found}),
        ("--env", _parse_variables("--env", variables)),
    ):
        _raise_if_secret(option, {name: values[name] for name in values.keys() - shown.keys()})
        found |= values
    found |= shown
    return {**content, "env_vars": found} if found else content


def _parse_variables(option: str, variables: Sequence[str]) -> dict[str, str]:
    """Parse the variables of an option into a mapping of names to values.

    Raises:
        InputError: If a name is empty, or a variable without a value is not set locally.
    """
    found: dict[str, str] = {}
    for variable in variables:
        name, equals, value = variable.partition("=")
        if not name:
            raise InputError(f"{option} {variable} has no name; write {option} NAME=VALUE")
        if not equals and name not in os.environ:
            raise InputError(
                f"{option} {name} is not set here; set it, or write {option} {name}=VALUE"
            )
        found[name] = value if equals else os.environ[name]
    return found


def _raise_if_secret(option: str, values: Mapping[str, str]) -> None:
    """Refuse secrets, because everybody with access to the dashboard could read them.

    Raises:
        InputError: Lists the names, not the values.
    """
    names = sorted(name for name, value in values.items() if is_secret(name, value))
    if names:
        raise InputError(
            f"{option}: {', '.join(names)} looks like a secret, and everybody with access to the "
            "dashboard can read a job's variables; set it on the nodes (environment, Kubernetes "
            "secret, or a file such as ~/.mlflow/credentials or ~/.aws/credentials), or, if "
            f"everybody may read it, pass --env-visible {names[0]}"
        )


def _variables(path: Path | None, given: Any) -> dict[str, str]:
    """Check `env_vars` of a runtime environment and convert the values to strings, as Ray requires.

    Raises:
        InputError: If it is not a mapping of names to scalars.
    """
    if not isinstance(given, dict) or any(
        not isinstance(value, (str, int, float)) for value in given.values()
    ):
        raise InputError(
            f"--runtime-env {path}: env_vars must be a mapping of names to values: {{NAME: value}}"
        )
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }


def read_resources(
    num_cpus: float | None, num_gpus: float | None, memory: str | None, custom: list[str]
) -> dict[str, Any]:
    """Arguments of Ray's `submit_job` that reserve resources for the driver (`--entrypoint-...`).

    Raises:
        InputError: If a size or an amount is invalid.
    """
    from jobs.units import parse_bytes

    amounts: dict[str, float] = {}
    for text in custom:
        name, _, amount = text.partition("=")
        try:
            if not name:
                raise ValueError
            amounts[name] = float(amount)
        except ValueError:
            raise InputError(
                f"--entrypoint-resource {text} is not of the form NAME=AMOUNT, e.g. big_disk=1"
            ) from None
    num_bytes = None if memory is None else parse_bytes(memory, "--entrypoint-memory")
    reserved = {
        "entrypoint_num_cpus": num_cpus,
        "entrypoint_num_gpus": num_gpus,
        "entrypoint_memory": num_bytes,
        "entrypoint_resources": amounts or None,
    }
    return {name: value for name, value in reserved.items() if value is not None}
