"""The page of a run of 21 cells: one file that stays small, so that it opens quickly."""

from __future__ import annotations

from clips import clip as clip_file
from viewed_runs import write_viewed_run

from jobs.report.compare import report_runs

METHODS = ("tango", "topk", "uniform", "random")
# The cells that are drawn side by side come first, as they get a cache.
CELLS = (
    "full",
    *(f"{name} r={share:g}" for share in (0.1, 0.05, 0.15, 0.2, 0.25) for name in METHODS),
)
TYPES = tuple(
    f"{what} {kind}"
    for what in ("action", "object", "order", "count")
    for kind in ("recognition", "reasoning", "perception")
)
MOST_BYTES = 5 * 2**20
# What a browser has to lay out and to decode before the page is there.
MOST_ELEMENTS, MOST_PIXELS = 3000, 20_000_000


def report_of(folder, clips):
    """The page."""
    video = clip_file("closed_gop.mp4")
    run = write_viewed_run(folder, clips=clips, questions=3, cells=CELLS, video=video, kinds=TYPES)
    return report_runs([run], num_clips=6)


def test_21_cells_and_12_types_are_one_small_file_with_everything_in_it(tmp_path):
    page = report_of(tmp_path, clips=40)
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    assert "type: 240 comparisons, " in text
    assert 'src="http' not in text
    assert "<script" not in text
    assert text.count('class="tango-clip"') == 2  # of as many clips there are tokens
    for name in TYPES:
        assert name in (page.parent / "differences_by_group.csv").read_text(encoding="utf-8")
