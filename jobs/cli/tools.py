"""Commands of `tango` that need no run: one question, the training of the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.completion import method_names, model_names
from jobs.cli.options import expanded, expanded_all, expanded_text
from jobs.cli.path_checks import check_method, check_model, check_video
from tango_core.errors import InputError


def ask(
    video: Annotated[
        str, typer.Argument(help="Video file, directory of frames, or URL.", callback=expanded_text)
    ],
    question: Annotated[str, typer.Argument(help="What to ask.")],
    choices: Annotated[
        list[str],
        typer.Option(help='An option; repeat it, or give several as "a dog|a cat".'),
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
        list[str], typer.Option(help="Another option of the method: --option alpha=2.")
    ] = [],  # noqa: B006
    clip: Annotated[
        str | None, typer.Option(metavar="START-END", help="Part of the video, in seconds.")
    ] = None,
    num_frames: Annotated[
        int | None, typer.Option(help="Frames to look at.  [default: the model's]")
    ] = None,
    saliency_from: Annotated[
        str | None,
        typer.Option(help="SigLIP checkpoint with a pooling head.", callback=expanded_text),
    ] = None,
    sinks: Annotated[
        str | None,
        typer.Option(help="File that `tango analyze sinks` wrote.", callback=expanded_text),
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Processor.")] = "auto",
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, max=10**12, help="Bound on the length of the reply.")
    ] = None,
) -> None:
    """Ask one question about one video: free-form, or with options."""
    from jobs.cli.ask_options import parse_bounds, parse_options

    bounds = None if clip is None else parse_bounds(clip)
    method_options = parse_options(option)
    check_model(model, path)
    check_video(video)
    check_method(method, retention, method_options)
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
    seed: Annotated[int, typer.Option(min=0, help="Decides everything that is drawn.")] = 0,
    minutes: Annotated[
        float, typer.Option(help="Time on two free cores; less shortens every stage.")
    ] = 90.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoints in OUTPUT.")
    ] = False,
    beside: Annotated[
        list[Path],
        typer.Option(
            help="Finished training with another seed, for the card; may be repeated.",
            callback=expanded_all,
        ),
    ] = [],  # noqa: B006
) -> None:
    """Train the embedded model from nothing."""
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

    trial = train_tiny(output, seed=seed, minutes=minutes, resume=resume, beside=beside)
    print(f"{100 * trial.overall.value:.1f} % on held-out clips; see {output / 'README.md'}")
