"""A clip as blocks of tokens with text around each: spans and positions, whatever was dropped."""

from itertools import pairwise

import pytest
import torch

from tango_core.models.language.prompt import BlockText, TextTokens, VisualTokens, lay_out_blocks
from tango_core.types import CompressedVideo

GRID = (4, 2, 3)
TEXTS = [BlockText((10, 11), (1,)), BlockText((12,), (1,)), BlockText((13, 14, 15)), BlockText(())]


def clip(indices, *, companions=False):
    """Tokens that say which they are."""
    kept = torch.tensor(indices, dtype=torch.int64)
    tokens = kept[:, None].float()
    rows = torch.stack([tokens + 100, tokens + 200], dim=1) if companions else None
    return CompressedVideo(tokens, kept, GRID, torch.zeros(4).double(), companions=rows)


def flat(spans):
    """Text as negative ids, visual tokens as their grid positions."""
    found = []
    for span in spans:
        if isinstance(span, TextTokens):
            assert span.of_clip
            found += [-one for one in span.ids]
        else:
            assert span.embeddings[:, 0].tolist() == span.indices.tolist()
            found += span.indices.tolist()
    return found


def in_grid(cells):
    return torch.stack([torch.zeros_like(cells), cells // 3, cells % 3])


def laid_out(indices, empty="keep", **options):
    return lay_out_blocks(clip(indices, **options), TEXTS, empty, in_grid, extent=3)


@pytest.mark.parametrize(
    ("indices", "empty", "expected"),
    [
        ([1, 5, 6, 18, 23], "keep", [-10, -11, 1, 5, -1, -12, 6, -1, -13, -14, -15, 18, 23]),
        ([6], "keep", [-10, -11, -1, -12, 6, -1, -13, -14, -15]),
        ([6], "drop", [-12, 6, -1]),
    ],
)
def test_text_stands_around_the_tokens_of_its_block(indices, empty, expected):
    spans, _, _ = laid_out(indices, empty)
    assert flat(spans) == expected
    kinds = [type(span) for span in spans]
    assert all(one is not other for one, other in pairwise(kinds)), "adjacent texts are merged"


def test_companions_go_with_their_tokens():
    spans, _, _ = laid_out([0, 7, 8], companions=True)
    found = torch.cat([span.companions for span in spans if isinstance(span, VisualTokens)])
    assert found[:, :, 0].tolist() == [[100, 200], [107, 207], [108, 208]]


@pytest.mark.parametrize("indices", [[], [0], [5, 6, 7, 17, 18, 23], list(range(24))])
@pytest.mark.parametrize("empty", ["keep", "drop"])
def test_positions_are_columns_of_the_full_clip(indices, empty):
    columns, at = [], 0
    for block, text in enumerate(TEXTS):
        own = [index for index in indices if index // 6 == block]
        stays = own or empty == "keep"
        for _ in text.before:
            columns += [(at,) * 3] if stays else []
            at += 1
        columns += [(at, at + index % 6 // 3, at + index % 3) for index in own]
        at += 3
        for _ in text.after:
            columns += [(at,) * 3] if stays else []
            at += 1
    spans, positions, end = laid_out(indices, empty)
    assert positions.T.tolist() == [list(column) for column in columns]
    assert end == at
    assert sum(map(len, spans)) == positions.shape[1]
