import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from hypothesis import given
from hypothesis import strategies as st

from tango_core.models.llava.layout import lay_out_clip

GOLDEN = GOLDEN_DIR / "unit_newline_grid.npz"


def test_rows_end_where_the_official_release_ends_them():
    with np.load(GOLDEN) as arrays:
        golden = {name: torch.tensor(arrays[name]) for name in arrays.files}
    num_frames, num_cells, width = golden["x"].shape
    side = round(num_cells**0.5)
    layout = lay_out_clip(golden["kept"], (num_frames, side, side), "grid")
    kept = golden["x"].reshape(-1, width)[golden["kept"]]
    rows = torch.cat([kept, golden["newline"][None]])[layout.order]
    assert torch.equal(rows, golden["y"])


@st.composite
def kept_of_a_clip(draw):
    grid = tuple(draw(st.integers(1, 5)) for _ in range(3))
    num_total = int(np.prod(grid))
    kept = draw(st.sets(st.integers(0, num_total - 1), max_size=num_total))
    return grid, sorted(kept)


@given(kept_of_a_clip())
def test_a_row_keeps_its_newline_as_long_as_it_keeps_a_token(clip):
    """Against the definition, row by row: where everything stands, and where it would stand."""
    grid, kept = clip
    order, places, place = [], [], 0
    for row in range(grid[0] * grid[1]):
        cells = range(row * grid[2], (row + 1) * grid[2])
        order += [kept.index(cell) for cell in cells if cell in kept]
        places += [place + column for column, cell in enumerate(cells) if cell in kept]
        if any(cell in kept for cell in cells):
            order.append(-1)
            places.append(place + grid[2])
        place += grid[2] + 1
    layout = lay_out_clip(torch.tensor(kept, dtype=torch.int64), grid, "grid")
    assert layout.order.tolist() == order
    assert layout.positions.tolist() == places
    assert layout.full_length == place


@pytest.mark.parametrize("kept", [[], [0, 5, 23], list(range(24))])
def test_one_newline_ends_a_clip_however_much_is_kept(kept):
    layout = lay_out_clip(torch.tensor(kept, dtype=torch.int64), (2, 3, 4), "one_token")
    assert layout.order.tolist() == [*range(len(kept)), -1]
    assert layout.positions.tolist() == [*kept, 24]
    assert layout.full_length == 25


def test_a_full_clip_of_the_publication_has_11648_visual_tokens():
    layout = lay_out_clip(torch.arange(64 * 13 * 13), (64, 13, 13), "grid")
    assert len(layout.order) == layout.full_length == 11_648
    assert layout.positions.tolist() == list(range(11_648))
