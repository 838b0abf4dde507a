"""The commands `tango ask`, `train-tiny` and `check-method`, which create no run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from jobs import exit_codes
from jobs.cli.completion import method_names, model_names
from jobs.cli.options import expanded, expanded_text
from tango_core.errors import InputError


def ask(
    video: Annotated[
        str, typer.Argument(help="Video file, directory of frames, or URL.", callback=expanded_text)
    ],
    question: Annotated[str, typer.Argument(help="The question.")],
    choices: Annotated[
        list[str],
        typer.Option(help='Answer option; repeat it, or give several as "a dog|a cat".'),
    ] = [],  # noqa: B006
    model: Annotated[
        str,
        typer.Option(
            help="Name of a model, or a checkpoint: directory or hub id.",
            autocompletion=model_names,
        ),
    ] = "tiny",
    path: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint for the named model.  [default: its own]", callback=expanded_text
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Pruning method.", autocompletion=method_names)
    ] = "tango",
    retention: Annotated[
        float | None,
        typer.Option(help="Share of the visual tokens to keep.  [default: 0.1]"),
    ] = None,
    option: Annotated[
        list[str], typer.Option(help="Further option of the method: --option alpha=2.")
    ] = [],  # noqa: B006
    clip: Annotated[
        str | None, typer.Option(metavar="START-END", help="Part of the video, in seconds.")
    ] = None,
    num_frames: Annotated[
        int | None, typer.Option(help="Number of frames.  [default: the model's]")
    ] = None,
    saliency_from: Annotated[
        str | None,
        typer.Option(help="SigLIP checkpoint with a pooling head.", callback=expanded_text),
    ] = None,
    sinks: Annotated[
        str | None,
        typer.Option(help="Sinks file written by `tango analyze sinks`.", callback=expanded_text),
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device.")] = "auto",
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, max=10**12, help="Maximum length of the reply in tokens.")
    ] = None,
) -> None:
    """Ask one question about one video: free-form, or with options."""
    bounds = None if clip is None else parse_bounds(clip)
    method_options = parse_options(option)
    from jobs.ask import ask

    code = ask(
        video,
        question,
        choices=choices,
        model=model,
        path=path,
        method=method,
        retention=retention,
        clip=bounds,
        max_new_tokens=max_new_tokens,
        model_options={
            "num_frames": num_frames,
            "saliency_from": saliency_from,
            "sinks": sinks,
            "device": device,
        },
        method_options=method_options,
        console=Console(),
    )
    raise typer.Exit(code)


def train_tiny(
    output: Annotated[
        Path, typer.Option(help="Directory that receives the model.", callback=expanded)
    ] = Path("tiny"),
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    minutes: Annotated[
        float, typer.Option(help="Training time on two free cores; scales every stage.")
    ] = 90.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoints in OUTPUT.")
    ] = False,
) -> None:
    """Train the built-in model from scratch."""
    from jobs.run.locations import raise_if_unusable

    raise_if_unusable(output)
    try:
        from jobs.training.command import train_tiny
    except ModuleNotFoundError as error:
        if error.name != "jobs.training":
            raise
        raise InputError(
            "train-tiny is not in the installed package; run it in a checkout of the repository"
        ) from None

    train_tiny(output, seed=seed, minutes=minutes, resume=resume)
    print(f"model: {output}; measure it with `tango evaluate` and --set model.path={output}")


# Arguments of `VideoChat.ask` that are options of the command, not of a method.
_FLAGS = ("video", "question", "choices", "method", "retention", "clip", "max_new_tokens")


def parse_bounds(text: str) -> tuple[float, float]:
    """Parse the value of `--clip`: `"12.5-30"`, in seconds.

    Raises:
        RecipeError: If it is not of that form.
    """
    from jobs.config.errors import RecipeError

    start, dash, end = text.partition("-")
    try:
        bounds = float(start), float(end)
    except ValueError:
        bounds = (0.0, -1.0)
    if not dash or not 0 <= bounds[0] <= bounds[1]:
        raise RecipeError(f"--clip {text!r} is not START-END in seconds, e.g. 12.5-30")
    return bounds


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse the values of `--option`: `"alpha=2"`, with a YAML value each.

    Raises:
        RecipeError: If one is not of that form, or has a flag of its own.
    """
    return dict(map(_option, texts))


def _option(text: str) -> tuple[str, Any]:
    """Parse `"alpha=2"`."""
    from jobs.config.bounded_yaml import YamlError, load_yaml
    from jobs.config.errors import RecipeError, shortened

    name, equals, value = text.partition("=")
    if not equals or not name or name in _FLAGS:
        raise RecipeError(
            f"--option {text!r} is not an OPTION=VALUE of the method, e.g. alpha=2; "
            "give answer options with --choices"
        )
    try:
        return name, load_yaml(value)
    except YamlError as error:
        raise RecipeError(f"--option {shortened(text)!r}: {shortened(value)!r} {error}") from error


def check_method(
    name: Annotated[
        str,
        typer.Argument(
            help="Your own method, my_module:MyMethod, or a built-in one.",
            autocompletion=method_names,
        ),
    ],
    set_: Annotated[
        list[str], typer.Option("--set", help="Option of the method: --set retention=0.2.")
    ] = [],  # noqa: B006
) -> None:
    """Check a method against the contract of all methods: budget, purity, order, dtype."""
    from jobs.config.overrides import with_overrides
    from tango_core.compressors.contract import check_method

    num_failed = 0
    for result in check_method(name, with_overrides({}, set_)):
        num_failed += result.failure is not None
        failed = f": {result.failure}" if result.failure else ""
        print(f"{'FAILED' if failed else 'ok':<6}  {result.promise}{failed}", flush=True)
    raise typer.Exit(exit_codes.of(not num_failed))
