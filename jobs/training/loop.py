"""The loop of one stage: a fixed number of steps, with checkpoints, a log and progress reports."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Metrics = dict[str, float]
"""Value by name."""
ReportProgress = Callable[[str, int, int, Metrics], None]
"""Called with stage, step, number of steps, and mean metrics since the last call."""

# Batches that may be ready in advance.
_PREPARED = 8


@dataclass(frozen=True)
class Stage:
    """Length and learning rate of a stage.

    Attributes:
        name: Name of its files.
        steps: Optimiser steps.
        rate: Highest learning rate; linear warm-up, then cosine decay to 3 % of it.
        warmup: Steps of warm-up.
        every: Steps between checkpoints and reports.
    """

    name: str
    steps: int
    rate: float
    warmup: int = 200
    every: int = 50


def run_stage(
    stage: Stage,
    model: nn.Module,
    batches: Dataset[Any],
    loss_of: Callable[[Any, int], tuple[Tensor, Metrics]],
    directory: Path,
    report: ReportProgress,
    state: dict[str, Any] | None = None,
) -> None:
    """Train `model` in place, from the last checkpoint in `directory` if there is one.

    Args:
        stage: Its length and learning rate.
        model: Its parameters that need gradients are trained.
        batches: Batch by step; made in one other process while the current step runs.
        loss_of: Loss of a batch at a step, and metrics to report.
        directory: Holds `<stage>.pt` and `<stage>.jsonl`.
        report: Called at every checkpoint.
        state: Further values to save and restore, changed in place by `loss_of`.
    """
    path, log = directory / f"{stage.name}.pt", directory / f"{stage.name}.jsonl"
    state = {} if state is None else state
    optimizer = _optimizer(model, stage.rate)
    first = 0
    if path.is_file():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.update(saved["state"])
        first = saved["step"]
    _truncate_log(log, first)
    loader: DataLoader[Any] = DataLoader(
        batches,
        batch_size=None,
        sampler=range(first, stage.steps),
        num_workers=1,
        prefetch_factor=_PREPARED,
    )
    model.train()
    since_report: list[Metrics] = []
    for step, batch in enumerate(loader, start=first):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(stage, step)
        loss, metrics = loss_of(batch, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        since_report.append({"loss": float(loss.detach()), **metrics})
        done = step + 1
        if done % stage.every == 0 or done == stage.steps:
            means = mean_metrics(since_report)
            since_report = []
            with log.open("a") as lines:
                lines.write(json.dumps({"step": done, **means}) + "\n")
            content = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "state": state,
                "step": done,
            }
            save_atomically(content, path)
            report(stage.name, done, stage.steps, means)
    model.eval()


def learning_rate(stage: Stage, step: int) -> float:
    """Learning rate of a step."""
    if step < stage.warmup:
        return stage.rate * (step + 1) / stage.warmup
    progress = (step - stage.warmup) / max(1, stage.steps - stage.warmup)
    return stage.rate * (0.03 + 0.97 * (1 + math.cos(math.pi * min(1.0, progress))) / 2)


def _truncate_log(log: Path, step: int) -> None:
    """Delete the lines that a stopped training wrote after its last checkpoint."""
    if log.is_file():
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(one for one in lines if json.loads(one)["step"] <= step))


def mean_metrics(steps: list[Metrics]) -> Metrics:
    """Mean of every metric over the steps where it is a number."""
    means = {}
    for name in dict.fromkeys(key for one in steps for key in one):
        values = [one[name] for one in steps if name in one and not math.isnan(one[name])]
        if values:
            means[name] = sum(values) / len(values)
    return means


def save_atomically(content: object, path: Path) -> None:
    """Write a file completely or not at all."""
    temporary = path.with_suffix(".tmp")
    torch.save(content, temporary)
    os.replace(temporary, path)


def _optimizer(model: nn.Module, rate: float) -> torch.optim.AdamW:
    """AdamW with weight decay for matrices only."""
    trained = [value for value in model.parameters() if value.requires_grad]
    groups = [
        {"params": [value for value in trained if value.ndim >= 2], "weight_decay": 0.05},
        {"params": [value for value in trained if value.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)
