"""Prepare batches in another process while the current step runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from torch.utils.data import DataLoader, IterableDataset

Item = TypeVar("Item")


def prefetch(dataset: IterableDataset[Item], num_items: int) -> Iterator[Item]:
    """Iterate over a dataset whose items are made in one other process.

    Args:
        dataset: Yields whole batches.
        num_items: Items that may be ready in advance.
    """
    loader: DataLoader[Item] = DataLoader(
        dataset, batch_size=None, num_workers=1, prefetch_factor=num_items
    )
    return iter(loader)
