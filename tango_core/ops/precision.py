"""Full-precision float32 matrix products, even if TF32 is enabled elsewhere.

TF32 reads 10 of the 23 bits of a mantissa. Models hardly change, but comparisons of
distances do: emulated on synthetic clips, 1.6 % of the tokens that DivPrune keeps change, and 0.3 %
of Tango's. So token selection runs in full precision and restores the previous setting afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

_FULL = "ieee"


class ProcessSetting(Generic[T]):
    """Changes a process-wide setting while any thread needs it, then restores it.

    Other threads see the changed setting meanwhile. The first thread to enter saves the previous
    value, and the last to leave restores it.

    Args:
        read: Returns the current value.
        write: Sets a value.
        needed: Maps the previous value to the one that is needed.
    """

    def __init__(
        self, read: Callable[[], T], write: Callable[[T], None], needed: Callable[[T], T]
    ) -> None:
        self._read, self._write, self._needed = read, write, needed
        self._lock = threading.Lock()
        self._users = 0
        self._before: list[T] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context manager in which the needed value is set."""
        with self._lock:
            if not self._users:
                self._before = [self._read()]
                self._write(self._needed(self._before[0]))
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._write(self._before.pop())

    def outside(self) -> T:
        """The value outside of any `held` block."""
        with self._lock:
            return self._before[0] if self._users else self._read()


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
