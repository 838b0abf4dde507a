"""Full-precision float32 matrix products, even if TF32 is enabled elsewhere.

TF32 reads 10 of the 23 bits of a mantissa. Models hardly change, but comparisons of
distances do: emulated on synthetic clips, 1.6 % of the tokens that DivPrune keeps change, and 0.3 %
of Tango's. So token selection runs in full precision and restores the previous setting afterwards.
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
    """Precision of float32 products in this process: `ieee`, `tf32` or `bf16`.

    Returns:
        Entries `matmul` and `convolution` on CUDA; token selection is always `ieee`
        (`full_precision`).
    """
    return {"matmul": _word(_products.outside()[0]), "convolution": _word(_convolution())}


def _word(setting: str) -> str:
    """Map a setting of any PyTorch version to `ieee`, `tf32` or `bf16`; unset means `ieee`."""
    return {"highest": _FULL, "high": "tf32", "medium": "tf32", "none": _FULL}.get(setting, setting)


def _is_new() -> bool:
    """Whether PyTorch has one setting per backend (2.9); reading both kinds raises."""
    return hasattr(torch.backends, "fp32_precision")


def _settings() -> tuple[str, ...]:
    """Current settings of matrix products, CUDA first."""
    if _is_new():
        return (
            torch.backends.cuda.matmul.fp32_precision,
            torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
        )
    return (torch.get_float32_matmul_precision(),)


def _set(settings: tuple[str, ...]) -> None:
    """Restore settings read by `_settings`."""
    if _is_new():
        torch.backends.cuda.matmul.fp32_precision = settings[0]
        torch.backends.mkldnn.matmul.fp32_precision = settings[1]  # type: ignore[attr-defined]
    else:
        # This call also sets CUDA's `allow_tf32`.
        torch.set_float32_matmul_precision("highest" if settings[0] == _FULL else settings[0])


def _convolution() -> str:
    """Current setting of convolutions on CUDA."""
    if _is_new():
        return str(torch.backends.cudnn.conv.fp32_precision)  # type: ignore[attr-defined]
    return "tf32" if torch.backends.cudnn.allow_tf32 else _FULL


_products = ProcessSetting(_settings, _set, lambda found: (_FULL,) * len(found))
