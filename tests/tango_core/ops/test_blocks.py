"""Walking over rows in parts."""

from itertools import product

import torch

from tango_core.ops.blocks import CPU_ELEMENTS, DEVICE_ELEMENTS, row_blocks


def test_parts_follow_each_other_and_cover_all_rows():
    for num_rows, width in product([0, 1, 73, 74, 6272], [0, 1, 3584, 2 * CPU_ELEMENTS]):
        blocks = row_blocks(num_rows, width, torch.device("cpu"))
        rows = [row for block in blocks for row in range(block.start, block.stop)]
        assert rows == list(range(num_rows))
        assert all(block.stop - block.start == 1 or width <= CPU_ELEMENTS for block in blocks)


def test_a_device_is_given_more_at_once():
    device, cpu = torch.device("cuda"), torch.device("cpu")
    assert len(row_blocks(6272, 3584, device)) == 1 < len(row_blocks(6272, 3584, cpu))
    assert len(row_blocks(2, DEVICE_ELEMENTS, device)) == 2
