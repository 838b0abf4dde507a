"""Load selected tensors of a checkpoint into an unmodified transformers module.

Modules are built on PyTorch's meta device, which allocates nothing, and their parameters are then
assigned from the safetensors files tensor by tensor. A model has a vision half (encoder, projector)
and a language half; loading one neither reads nor allocates the other. Files are memory-mapped: on
a CPU, in the file's precision, weights are pages of the file, read on first use; for another
precision or device every tensor is converted directly from those pages without a second copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tango_core.errors import InputError
from tango_core.models.checkpoints.directory import Checkpoint
from tango_core.models.placement import spread_layers

ModuleT = TypeVar("ModuleT", bound=nn.Module)
# Maps a stored name to the name in the module, to `None` for a tensor of another part of the model,
# or to several names whose tensors are stored concatenated (`attn.qkv` of some towers).
Rename = Callable[[str], str | tuple[str, ...] | None]

# A file is reopened after this many bytes, because mapped pages count as memory of this process
# until the mapping is closed.
_MAPPED_BYTES = 2**27

# Old checkpoints store these; today's modules compute them.
_COMPUTED = ("rotary_emb.inv_freq", "embeddings.position_ids")


def load_module(
    build: Callable[[], ModuleT],
    checkpoint: Checkpoint,
    rename: Rename,
    *,
    dtype: torch.dtype,
    device: torch.device | Sequence[torch.device],
    tied: Mapping[str, str] | None = None,
) -> ModuleT:
    """Build a module on the meta device and load its weights from a checkpoint.

    Args:
        build: Creates the module; called on the meta device.
        checkpoint: Source of the tensors.
        rename: Maps a name in the checkpoint to the name in the module, to `None` for a tensor that
            does not belong to it, or to the names of several tensors that are stored as one, which
            is split along its first dimension in this order, without a copy.
        dtype: Floating-point tensors are converted to it.
        device: Target device; `meta` only compares names and shapes. Layers may be spread over
            several devices (`placement.spread_layers`).
        tied: Parameters (keys) that share another parameter (values) of the module, unless the
            checkpoint stores them too: they may differ (transformers issue 45127; 5.23.0).

    Returns:
        The module in evaluation mode, without gradients, all tensors on the target devices.

    Raises:
        ValueError: If the module lacks a tensor, the checkpoint holds one the module does not know,
            or a shape differs.
    """
    devices = [device] if isinstance(device, torch.device) else list(device)
    tied = tied or {}
    with torch.device("meta"):
        module = build()
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    files = _files_of_tensors(checkpoint)
    targets = _targets(files, rename)
    stored = {part for parts in targets.values() for part in parts}
    _raise_unless_equal(checkpoint, set(expected) - (set(tied) - stored), targets)

    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in expected.items()}
    held = {n: size for n, size in sizes.items() if n not in tied or n in stored}
    places = spread_layers(held, devices)
    state: dict[str, Tensor] = {}
    for source, value in _read(checkpoint, files, targets):
        parts = targets[source]
        rows = [expected[part][0] for part in parts if expected[part]]
        shape = expected[parts[0]] if len(parts) == 1 else (sum(rows), *expected[parts[0]][1:])
        if tuple(value.shape) != shape:
            raise InputError(
                f"{checkpoint.name}: tensor {source} has shape "
                f"{tuple(value.shape)}, but config.json asks for {shape}; configuration and "
                "weights do not belong together"
            )
        value = value.to(places[parts[0]])  # its parts belong to one layer
        value = value.to(dtype) if value.is_floating_point() else value
        cut = torch.split(value, rows) if len(parts) > 1 else (value,)
        state.update(zip(parts, cut, strict=True))
    module.load_state_dict(state, assign=True, strict=False)
    for name, origin in tied.items():
        if name not in state:
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, module.get_parameter(origin))
    _restore_computed_buffers(module, devices[0])
    return module.requires_grad_(False).eval()


def files_of_half(checkpoint: Checkpoint, rename: Rename) -> tuple[str, ...]:
    """Names of the files that `load_module` opens with this `rename`, without network access.

    A checkpoint without an index is one file, which holds the vision and the language half.
    """
    listed = checkpoint.weight_map()
    if listed is None:
        return checkpoint.weight_files()
    return tuple(sorted({file for name, file in listed.items() if rename(name) is not None}))


def read_tensors(checkpoint: Checkpoint, rename: Rename) -> Iterator[tuple[str, Tensor]]:
    """Read tensors one by one; those that `rename` splits into several are left out.

    Args:
        checkpoint: Source of the tensors.
        rename: As in `load_module`.
    """
    files = _files_of_tensors(checkpoint)
    whole = {source: one for source, one in _targets(files, rename).items() if len(one) == 1}
    for source, value in _read(checkpoint, files, whole):
        yield whole[source][0], value


def _files_of_tensors(checkpoint: Checkpoint) -> dict[str, str]:
    """Name of the file that holds each tensor."""
    listed = checkpoint.weight_map()
    names = checkpoint.weight_files()
    if listed is not None:
        return listed
    located: dict[str, str] = {}
    for name, path in zip(names, checkpoint.fetch(names), strict=True):
        with _opened(checkpoint, path) as tensors:
            located.update(dict.fromkeys(tensors.keys(), name))
    return located


def _targets(files: Mapping[str, str], rename: Rename) -> dict[str, tuple[str, ...]]:
    """Names in the module of every stored tensor that belongs to it."""
    renamed = {source: rename(source) for source in files if not source.endswith(_COMPUTED)}
    return {
        source: (name,) if isinstance(name, str) else name
        for source, name in renamed.items()
        if name is not None
    }


def _read(
    checkpoint: Checkpoint, files: Mapping[str, str], wanted: Iterable[str]
) -> Iterator[tuple[str, Tensor]]:
    """Read stored tensors file by file, as views of the memory-mapped files.

    Args:
        checkpoint: Source of the tensors.
        files: Name of the file that holds each tensor.
        wanted: Names of stored tensors.
    """
    by_file: dict[str, list[str]] = {}
    for source in wanted:
        by_file.setdefault(files[source], []).append(source)
    for path, sources in zip(checkpoint.fetch([*by_file]), by_file.values(), strict=True):
        tensors, mapped = None, 0
        for source in sources:
            if tensors is None or mapped > _MAPPED_BYTES:
                tensors, mapped = _opened(checkpoint, path), 0
            try:
                value: Tensor = tensors.get_tensor(source)
            except SafetensorError as error:
                raise _damaged(checkpoint, path, error) from None
            mapped += value.nbytes
            yield source, value


def _opened(checkpoint: Checkpoint, path: Path) -> Any:
    """Open a safetensors file, which also checks its header against its size."""
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise _damaged(checkpoint, path, error) from None


def _damaged(checkpoint: Checkpoint, path: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0]
    return InputError(
        f"{checkpoint.name}: {path.name} is damaged ({reason}); copy the checkpoint again"
    )


def _raise_unless_equal(
    checkpoint: Checkpoint, expected: set[str], targets: Mapping[str, tuple[str, ...]]
) -> None:
    """Raise for missing or unexpected tensors; the message lists the first ones."""
    missing = sorted(expected - {part for parts in targets.values() for part in parts})
    unexpected = sorted(source for source, parts in targets.items() if not expected >= {*parts})
    faults = [
        f"{kind} {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for kind, names in (("lacks", missing), ("has unknown", unexpected))
        if names
    ]
    if faults:
        raise InputError(
            f"{checkpoint.name} does not fit its config.json: it {'; it '.join(faults)}"
        )


def _restore_computed_buffers(module: nn.Module, device: torch.device) -> None:
    """Compute the buffers that no checkpoint stores (rotary frequencies, position numbers).

    They were built on the meta device with everything else. Their owners compute them from their
    configuration alone, so a second instance of the owner has the right values.
    """
    if device.type == "meta":
        return
    for owner in list(module.modules()):
        left = [name for name, buffer in owner.named_buffers(recurse=False) if buffer.is_meta]
        if not left:
            continue
        fresh = type(owner)(owner.config)
        for name in left:
            setattr(owner, name, fresh.get_buffer(name).to(device))
