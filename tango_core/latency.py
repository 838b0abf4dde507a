"""Time and memory of the stages of a clip.

GPU calls return before the work is finished, so a host clock is wrong there. On CUDA every stage is
measured between two device events, which are read after the device has finished; elsewhere calls
are synchronous, and the host's clock is used.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

_GIB = 2**30


@dataclass
class ClipLatency:
    """Times and peak memory of one clip; set when its block ends.

    Attributes:
        stage_ms: Milliseconds by stage, in order of their start; summed if a stage ran several
            times.
        peak_gib: Largest memory in use during the clip, in GiB; see `PeakMemory`.
    """

    stage_ms: dict[str, float] = field(default_factory=dict)
    peak_gib: float = 0.0


class LatencyProfile:
    """Times of named stages over many clips, without the first clips (warm-up).

        profile = LatencyProfile("cuda")
        for frames in clips:
            with profile.clip():
                with profile.stage("vision"):
                    features = encoder.encode(frames, compressor.needs)
                with profile.stage("compress"):
                    compressor.compress(features, clock=profile)
        print(profile.summary()["vision"]["p50"])

    Stages may contain others: `compress` includes the `segment`, `select` and `merge` of a method
    that reports them to its clock. The first call on a device compiles kernels and fills pools of
    memory, so at least one clip should be warm-up.

    Args:
        device: Where the work runs; `"cuda"` is measured with events.
        warm_up: Number of first clips that are not counted, 0 or more.
    """

    def __init__(self, device: torch.device | str, warm_up: int = 1) -> None:
        self.device = torch.device(device)
        self.memory = PeakMemory(self.device)
        self.clips: list[ClipLatency] = []
        self._left_to_warm_up = warm_up
        self._running: list[tuple[str, _Timer]] | None = None
        self._added: dict[str, float] = {}

    @contextmanager
    def clip(self) -> Iterator[ClipLatency]:
        """Measure one clip; the result is available after the block has ended without an error."""
        self._running, self._added = [], {}
        measured = ClipLatency()
        self.memory.reset()
        try:
            yield measured
            measured.peak_gib = self.memory.gib()
            timed = ((name, timer.read_ms()) for name, timer in self._running)
            for name, ms in (*timed, *self._added.items()):
                measured.stage_ms[name] = measured.stage_ms.get(name, 0.0) + ms
        finally:
            self._running = None
        if self._left_to_warm_up:
            self._left_to_warm_up -= 1
        else:
            self.clips.append(measured)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a part of the current clip; outside of a clip nothing is measured."""
        if self._running is None:
            yield
            return
        timer = _Timer(self.device)
        self._running.append((name, timer))
        try:
            yield
        finally:
            timer.stop()

    def add(self, name: str, ms: float) -> None:
        """Add milliseconds measured elsewhere, such as `Answer.prefill_ms`."""
        self._added[name] = self._added.get(name, 0.0) + ms

    def summary(self) -> dict[str, Mapping[str, float]]:
        """{p50, p90, mean, n} in milliseconds by stage, over the clips that ran it."""
        times: dict[str, list[float]] = {}
        for clip in self.clips:
            for name, ms in clip.stage_ms.items():
                times.setdefault(name, []).append(ms)
        found: dict[str, Mapping[str, float]] = {}
        for name, values in times.items():
            p50, p90 = np.percentile(values, [50, 90]).tolist()
            found[name] = {"p50": p50, "p90": p90, "mean": float(np.mean(values)), "n": len(values)}
        return found

    @property
    def peak_gib(self) -> float:
        """Largest peak of all counted clips, in GiB."""
        return max((clip.peak_gib for clip in self.clips), default=0.0)


class PeakMemory:
    """The largest memory in use since the last `reset`.

    `kind` says whose: `"device"` is what torch had allocated on the GPU, weights included;
    `"process"` is the resident memory of the whole process, libraries included. Where the system
    cannot forget an earlier peak of the process (other than Linux), that peak remains.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kind: Literal["device", "process"] = "device" if device.type == "cuda" else "process"

    def reset(self) -> None:
        """Forget earlier peaks."""
        if self.kind == "device":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")  # 5: the high-water mark alone
        except OSError:
            return

    def gib(self) -> float:
        """The peak in GiB."""
        if self.kind == "device":
            return torch.cuda.max_memory_allocated(self.device) / _GIB
        try:
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) / 2**20
        except (OSError, IndexError):  # not Linux, or a sandbox without this line
            import resource  # the peak since the process started

            unit = 1 if sys.platform == "darwin" else 1024
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GIB


class _Timer:
    """A running timer: device events on CUDA, else the wall clock of this thread's calls."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._start = self._end = self._now()

    def _now(self) -> Any:
        if self._stream is None:
            return time.perf_counter()
        event: Any = torch.cuda.Event
        mark = event(enable_timing=True)
        mark.record(self._stream)
        return mark

    def stop(self) -> None:
        """End the interval."""
        self._end = self._now()

    def read_ms(self) -> float:
        """Milliseconds between start and stop; waits for the device."""
        if self._stream is None:
            return float(self._end - self._start) * 1e3
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end))


# A clock that measures nothing: `stage` measures only inside of `clip`, which nobody calls here.
NO_TIMER = LatencyProfile("cpu")
