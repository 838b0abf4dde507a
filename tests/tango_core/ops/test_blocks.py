"""Rows in parts, and inner products: right, symmetric to the bit, and the same by every way."""

from itertools import product

import pytest
import torch
from rounding import assert_equal_but_for_rounding, rounding_bound

from tango_core.ops import blocks
from tango_core.ops.blocks import CPU_ELEMENTS, DEVICE_ELEMENTS, row_blocks, write_products
from tango_core.ops.clustering import density_peaks, squared_distances


def _points(num_groups, num_points, dim):
    return torch.randn(num_groups, num_points, dim, generator=torch.Generator().manual_seed(0))


def _products(points):
    out = torch.full((len(points), points.shape[1], points.shape[1]), torch.nan)
    write_products(points, out)
    return out


@pytest.mark.parametrize("with_onednn", [True, False])
@pytest.mark.parametrize(
    ("num_groups", "num_points"), [(0, 5), (3, 1), (3, 45), (2, 64), (2, 97), (1, 700)]
)
def test_products_are_right_and_symmetric_to_the_bit(
    monkeypatch, with_onednn, num_groups, num_points
):
    if with_onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of PyTorch has no oneDNN")
    capability = "AVX512" if with_onednn else "AVX2"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    points = _points(num_groups, num_points, 50)
    ours = _products(points)
    assert torch.equal(ours, ours.mT)
    expected = (points.double() @ points.double().mT).float()
    bound = rounding_bound(expected, points.shape[-1]) if expected.numel() else 0.0
    torch.testing.assert_close(ours, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("block", [7, 16, 64])
def test_blocks_do_not_show_in_distances_or_centres(monkeypatch, block):
    points = _points(2, 45, 10)
    whole = squared_distances(points)
    monkeypatch.setattr(blocks, "SMALLEST_BLOCK", block)
    blocked = squared_distances(points)
    assert torch.equal(blocked, blocked.mT)
    # A product, the squares of both points, and the sum of the three.
    assert_equal_but_for_rounding(blocked, whole, 3 * points.shape[-1] + 2)
    assert torch.equal(density_peaks(blocked, 8), density_peaks(whole, 8))


def test_rows_of_a_wider_tensor_are_read_in_place_and_left_alone():
    wider = _points(2, 70, 60)
    before = wider.clone()
    ours = _products(wider[..., 10:40])
    assert torch.equal(ours, _products(wider[..., 10:40].contiguous()))
    assert torch.equal(wider, before)


def test_a_product_that_rounds_differently_in_its_mirror_image_is_made_symmetric():
    product = _points(1, 3, 5)[0]  # rows 2 ... 4 of five points with all of them
    out = torch.full((5, 5), torch.nan)
    out[:2, :2] = 0
    blocks._write_mirrored(product, out, slice(2, 5))
    assert torch.equal(out, out.mT)
    assert torch.equal(out[2:, :2], product[:, :2])
    assert torch.equal(out[2:, 2:], torch.minimum(product[:, 2:], product[:, 2:].mT))


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
