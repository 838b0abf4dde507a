"""A clip as blocks of tokens with text around each: spans and positions, whatever was dropped."""

import pytest
import torch

from tango_core.models.language.prompt import (
    BlockText,
    TextTokens,
    VisualTokens,
    block_positions,
    lay_out_blocks,
)
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


def positions_of(indices, empty):
    return block_positions(clip(indices), TEXTS, empty, in_grid, extent=3)


def test_text_stands_around_the_tokens_of_its_block():
    spans = lay_out_blocks(clip([1, 5, 6, 18, 23]), TEXTS)
    assert flat(spans) == [-10, -11, 1, 5, -1, -12, 6, -1, -13, -14, -15, 18, 23]
    assert [len(span) for span in spans] == [2, 2, 2, 1, 4, 2]


def test_an_empty_block_keeps_its_text_or_loses_it():
    kept, dropped = (lay_out_blocks(clip([6]), TEXTS, empty) for empty in ("keep", "drop"))
    assert flat(kept) == [-10, -11, -1, -12, 6, -1, -13, -14, -15]
    assert flat(dropped) == [-12, 6, -1]
    assert [type(span) for span in kept] == [TextTokens, VisualTokens, TextTokens]


def test_companions_go_with_their_tokens():
    spans = lay_out_blocks(clip([0, 7, 8], companions=True), TEXTS)
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
    positions, end = positions_of(indices, empty)
    assert positions.T.tolist() == [list(column) for column in columns]
    assert end == at
    spans = lay_out_blocks(clip(indices), TEXTS, empty)
    assert sum(map(len, spans)) == positions.shape[1]


def test_counts_work_as_positions_too():
    positions, end = block_positions(clip([5, 6, 23]), TEXTS, "keep", lambda cells: cells, 6)
    assert positions.tolist() == [0, 1, 7, 8, 9, 10, 16, 17, 18, 19, 31]
    assert end == 32


def test_a_text_for_every_block_is_needed():
    with pytest.raises(ValueError, match="4 temporal positions needs as many texts, got 3"):
        lay_out_blocks(clip([0]), TEXTS[:3])
