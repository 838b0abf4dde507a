"""A distribution of measurements that are too many to keep: exact up to a million, then in bins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jobs.results.quantities import LatencyStats

EXACT_UP_TO = 2**20
"""Measurements that are kept as they are; quantiles of more are off by at most 0.05 %."""

# A bin holds the values with the same exponent and the same first 10 bits of the fraction.
_SHIFT = 52 - 10
_LOWEST = 2.0**-30
_NUM_BINS = 64 << 10
_QUANTILES = (0.5, 0.9, 0.95)

Values = npt.NDArray[np.float64]


class Distribution:
    """Takes measurements batch by batch; gives their mean and quantiles.

    The mean is exact however many there are. Values are at least 0; below 1e-9 and above 1e10 they
    count as these limits once they are in bins.
    """

    def __init__(self, exact_up_to: int = EXACT_UP_TO) -> None:
        self.count, self.total = 0, 0.0
        self._exact_up_to = exact_up_to
        self._values = np.empty(0)
        self._bins: npt.NDArray[np.int64] | None = None

    def add(self, values: Values) -> None:
        """Take some measurements, none of them NaN."""
        if not len(values):
            return
        count = self.count
        self.count += len(values)
        self.total += float(values.sum())
        if self._bins is not None:
            self._bins += _binned(values)
        elif self.count > self._exact_up_to:
            self._bins = _binned(self._values[:count]) + _binned(values)
            self._values = np.empty(0)
        else:
            if self.count > len(self._values):
                room = min(self._exact_up_to, max(2 * len(self._values), self.count))
                self._values = np.concatenate([self._values[:count], np.empty(room - count)])
            self._values[count : self.count] = values

    def merge(self, other: Distribution) -> None:
        """Take all measurements of another distribution."""
        if other._bins is None:
            self.add(other._values[: other.count])
            return
        if self._bins is None:
            self._bins = _binned(self._values[: self.count])
            self._values = np.empty(0)
        self._bins += other._bins
        self.count += other.count
        self.total += other.total

    def stats(self) -> LatencyStats | None:
        """Mean and quantiles; `None` without a measurement."""
        if not self.count:
            return None
        if self._bins is None:
            values = self._values[: self.count]
            p50, p90, p95 = np.quantile(values, _QUANTILES).tolist()
            return LatencyStats(p50, p90, p95, mean=float(values.mean()), n=self.count)
        ends = np.cumsum(self._bins)
        ranks = np.asarray(_QUANTILES) * (self.count - 1)
        p50, p90, p95 = _middles(np.searchsorted(ends, ranks, side="right")).tolist()
        return LatencyStats(p50, p90, p95, mean=self.total / self.count, n=self.count)


def _binned(values: Values) -> npt.NDArray[np.int64]:
    """(_NUM_BINS,) how many values are in each bin."""
    keys = (np.maximum(values, _LOWEST).view(np.int64) >> _SHIFT) - _key_of_lowest()
    return np.bincount(np.minimum(keys, _NUM_BINS - 1), minlength=_NUM_BINS).astype(np.int64)


def _middles(bins: npt.NDArray[np.int64]) -> Values:
    """The value in the middle of each bin."""
    keys = (bins.astype(np.int64) + _key_of_lowest()) << _SHIFT
    return np.asarray((keys + (1 << (_SHIFT - 1))).view(np.float64))


def _key_of_lowest() -> int:
    """Number of the bin of the lowest value, counted from that of 0."""
    return int(np.array([_LOWEST]).view(np.int64)[0] >> _SHIFT)
