"""Refuse clips with values that are not finite, and read from the device once while doing so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tango_core.errors import InputError
from tango_core.types import NotFiniteError, VisualFeatures

# Clip -> tensors of it that were found finite, each with its version then: autograd's count of
# writes. A sweep compresses one clip by many methods, and one look is enough for all of them.
_FINITE: WeakKeyDictionary[VisualFeatures, dict[str, int]] = WeakKeyDictionary()


def raise_if_missing(features: VisualFeatures, needs: frozenset[str]) -> None:
    """Raise `ValueError` if a needed signal is missing."""
    missing = sorted(name for name in needs if getattr(features, name) is None)
    if missing:
        raise InputError(
            f"this method needs {', '.join(missing)}, which the features of this clip do not hold"
        )


def raise_if_not_finite(features: VisualFeatures, needs: frozenset[str]) -> None:
    """Raise `NotFiniteError` if the tokens or a needed signal hold NaN or infinity.

    What was found finite is looked at again only after PyTorch has written to it; a tensor that
    counts no writes (made in inference mode) is looked at every time.
    """
    names = _unseen(features, needs)
    if names and not bool(_sums(features, names).isfinite().all()):
        raise_for_values(features, names)
    _note(features, names)


def read_checked(
    features: VisualFeatures, needs: frozenset[str], *values: Tensor, squares: Tensor | None = None
) -> list[NDArray[Any]]:
    """Read small tensors that a method plans by; the same transfer says whether all is finite.

    Methods that use it set `checks_in_plan`.

    Args:
        features: Of the clip.
        needs: Signals that the method reads.
        *values: Tensors of bools, float32, or whole numbers below 2^24.
        squares: (T, L) norms of the tokens, squared or not, of methods that take them anyway: they
            show what is not finite without another pass over the tokens.

    Returns:
        The values as arrays of their own types.

    Raises:
        NotFiniteError: If tokens, needed signals or squares hold NaN or infinity.
    """
    names = [name for name in _unseen(features, needs) if squares is None or name != "tokens"]
    sums = [_sums(features, names)] if names else []
    if squares is not None:
        sums.append(squares.sum()[None])
    flat = torch.cat([*(value.float().flatten() for value in values), *sums]).cpu().numpy()
    sizes = [value.numel() for value in values]
    *parts, found = np.split(flat, np.cumsum(sizes))
    if not np.isfinite(found).all():
        raise_for_values(features, names)
        if squares is not None and not bool(squares.isfinite().all()):
            refuse_norms(features, needs)
    _note(features, names)
    return [
        part.reshape(value.shape).astype(_numpy_type(value))
        for part, value in zip(parts, values, strict=True)
    ]


def refuse_norms(features: VisualFeatures, needs: frozenset[str]) -> NoReturn:
    """Raise `ValueError` for a clip some of whose tokens have a norm that is not finite.

    Methods that take norms anyway look at them instead of at the tokens: one read less.
    """
    raise_if_not_finite(features, needs)
    raise InputError("tokens of this clip are so large that their norms overflow float32")


def _unseen(features: VisualFeatures, needs: frozenset[str]) -> list[str]:
    """Tokens and signals that were not found finite as they are now."""
    found = _FINITE.get(features, {})
    return [
        name
        for name in ("tokens", *sorted(needs))
        if (version := _version(features, name)) is None or found.get(name) != version
    ]


def _note(features: VisualFeatures, names: list[str]) -> None:
    """Remember that these were found finite."""
    versions = {name: _version(features, name) for name in names}
    known = {name: version for name, version in versions.items() if version is not None}
    _FINITE.setdefault(features, {}).update(known)


def _version(features: VisualFeatures, name: str) -> int | None:
    """Writes to a signal so far; `None` if nobody counts them."""
    value: Tensor = getattr(features, name)
    return None if value.is_inference() else value._version


def _sums(features: VisualFeatures, names: list[str]) -> Tensor:
    """(n,) float32; a finite sum has finite terms, and only an overflow needs a second look."""
    return torch.stack([getattr(features, name).sum(dtype=torch.float32) for name in names])


def raise_for_values(features: VisualFeatures, names: Iterable[str]) -> None:
    """Raise `NotFiniteError` for the first of these tensors that holds NaN or infinity."""
    for name in names:
        if not bool(getattr(features, name).isfinite().all()):
            dtype = str(features.tokens.dtype).removeprefix("torch.")
            raise NotFiniteError(
                f"{name} of this clip hold NaN or infinite values, computed by the vision encoder "
                f"in {dtype}; set model.dtype to float32, or check the checkpoint's weights"
            )


def _numpy_type(value: Tensor) -> type[Any]:
    """The array type of a tensor's values."""
    if value.dtype == torch.bool:
        return np.bool_
    return np.float32 if value.is_floating_point() else np.int64
