"""Work of one device as a CUDA graph: recorded once, then one launch whenever it is done again."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

logger = logging.getLogger(__name__)


class Recorder:
    """Records work of one device, one piece after another.

    All pieces are recorded on one stream: cuBLAS keeps 32 MiB of the device for every stream that
    it has worked on, for as long as the process lives.

    Args:
        device: Of the work. It need not be the current one, on which PyTorch would record.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """The work as a graph, not done yet; `None`, with a warning, if it cannot be recorded.

        Other threads may go on using the device meanwhile: what they do is no part of the graph and
        does not spoil it.

        Args:
            work: Has been done before, allocates nothing that outlives it, and nothing in it waits
                for the device.
        """
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            try:
                return self._recorded(work)
            except RuntimeError as error:
                reason = str(error).split("\n")[0]
            torch.cuda.set_stream(stream)  # a recording that broke off stays on its own
        logger.warning("decoding goes on without a CUDA graph: %s", reason)
        return None

    def _recorded(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """The graph."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph
