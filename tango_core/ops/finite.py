"""Reject clips with NaN or infinite values, with a single read from the device."""

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

# Clip -> names of its tensors that are finite. A sweep compresses one clip with many methods.
_FINITE: WeakKeyDictionary[VisualFeatures, set[str]] = WeakKeyDictionary()


def raise_if_missing(features: VisualFeatures, needs: frozenset[str]) -> None:
    """Raise `ValueError` if a needed signal is missing."""
    missing = sorted(name for name in needs if getattr(features, name) is None)
    if missing:
        raise InputError(
            f"this method needs {', '.join(missing)}, which the features of this clip do not hold"
        )


def raise_if_not_finite(features: VisualFeatures, needs: frozenset[str]) -> None:
    """Raise `NotFiniteError` if the tokens or a needed signal hold NaN or infinity."""
    names = _unchecked(features, needs)
    if names and not bool(_sums(features, names).isfinite().all()):
        raise_for_values(features, names)
    _FINITE.setdefault(features, set()).update(names)


def read_checked(
    features: VisualFeatures, needs: frozenset[str], *values: Tensor, squares: Tensor | None = None
) -> list[NDArray[Any]]:
    """Copy small tensors that a method plans with to the host, and check that all is finite.

    Methods that use it set `checks_in_plan`.

    Args:
        features: The clip's features.
        needs: Signals that the method reads.
        *values: Tensors of bools, float32, or whole numbers below 2^24.
        squares: (T, L) norms of the tokens, squared or not, if the method computes them anyway: a
            non-finite norm reveals a non-finite token without another pass over the tokens.

    Returns:
        The values as arrays of the same types.

    Raises:
        NotFiniteError: If tokens, needed signals or squares hold NaN or infinity.
    """
    names = _unchecked(features, needs)
    if squares is not None and "tokens" in names:
        names.remove("tokens")
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
    _FINITE.setdefault(features, set()).update(names)
    return [
        part.reshape(value.shape).astype(_numpy_type(value))
        for part, value in zip(parts, values, strict=True)
    ]


def refuse_norms(features: VisualFeatures, needs: frozenset[str]) -> NoReturn:
    """Raise `ValueError` for a clip with tokens whose norm is not finite.

    Methods that compute norms anyway check them instead of the tokens, which saves one read.
    """
    raise_if_not_finite(features, needs)
    raise InputError("tokens of this clip are so large that their norms overflow float32")


def _unchecked(features: VisualFeatures, needs: frozenset[str]) -> list[str]:
    """The tokens and needed signals that were not found finite before."""
    found = _FINITE.get(features, ())
    return [name for name in ("tokens", *sorted(needs)) if name not in found]


def _sums(features: VisualFeatures, names: list[str]) -> Tensor:
    """(n,) float32 sums; a finite sum has finite terms, an infinite one may be an overflow."""
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
