"""Full float32 matrix products, whatever the user allows elsewhere.

TF32 reads 10 of the 23 bits of a mantissa. Models hardly notice; a comparison of distances does:
emulated on synthetic clips, 1.6 % of the tokens that DivPrune keeps become others, and 0.3 % of
Tango's. So what chooses tokens asks for full precision, and puts back what was set before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tango_core.ops.process_setting import ProcessSetting

_FULL = "ieee"


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 in full precision on every device inside the block; see `ProcessSetting`."""
    with _products.held():
        yield


def float32_products() -> dict[str, str]:
    """How precisely PyTorch multiplies float32 in this process: `ieee`, `tf32` or `bf16`.

    Returns:
        `matmul` and `convolution` on CUDA; selection is `ieee` in any case (`full_precision`).
    """
    return {"matmul": _word(_products.outside()[0]), "convolution": _word(_convolution())}


def _word(setting: str) -> str:
    """One vocabulary for the settings of all versions of PyTorch; nothing set is full precision."""
    return {"highest": _FULL, "high": "tf32", "medium": "tf32", "none": _FULL}.get(setting, setting)


def _is_new() -> bool:
    """Whether PyTorch has one setting per backend (2.9); reading both kinds raises."""
    return hasattr(torch.backends, "fp32_precision")


def _settings() -> tuple[str, ...]:
    """What is set for products, first on CUDA."""
    if _is_new():
        return (
            torch.backends.cuda.matmul.fp32_precision,
            torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
        )
    return (torch.get_float32_matmul_precision(),)


def _set(settings: tuple[str, ...]) -> None:
    """Set what `_settings` gave."""
    if _is_new():
        torch.backends.cuda.matmul.fp32_precision = settings[0]
        torch.backends.mkldnn.matmul.fp32_precision = settings[1]  # type: ignore[attr-defined]
    else:
        # Sets `allow_tf32` of CUDA as well, and reads what was set there.
        torch.set_float32_matmul_precision("highest" if settings[0] == _FULL else settings[0])


def _convolution() -> str:
    """What is set for convolutions on CUDA."""
    if _is_new():
        return str(torch.backends.cudnn.conv.fp32_precision)  # type: ignore[attr-defined]
    return "tf32" if torch.backends.cudnn.allow_tf32 else _FULL


_products = ProcessSetting(_settings, _set, lambda found: (_FULL,) * len(found))
