"""Themes of figures that matplotlib draws, as its settings: colours in light and dark."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, cast

from cycler import cycler
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jobs.report.charts import COLOURS, NUM_COLOURS

# Settings of matplotlib, or keyword arguments of its functions.
Style = dict[str, Any]


def _theme(at: int) -> Style:
    paper, ink, line = (COLOURS[part][at] for part in ("paper", "ink", "line"))
    return {
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), paper),
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), ink),
        **dict.fromkeys(("xtick.color", "ytick.color", "legend.labelcolor"), ink),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), line),
        **{f"axes.spines.{side}": side == "bottom" for side in ("left", "right", "top", "bottom")},
        **{f"{x}tick.{size}.size": 0 for x in "xy" for size in ("major", "minor")},
        # Distinguishable for colour-blind readers; markers differ, too.
        "axes.prop_cycle": cycler(color=[COLOURS[f"s{one}"][at] for one in range(NUM_COLOURS)]),
        "axes.axisbelow": True,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "text.parse_math": False,  # dollar signs in names are no formulas
        "savefig.dpi": 160,
        "svg.hashsalt": "tango",
    }


LIGHT, DARK = _theme(0), _theme(1)


def new_figure(
    size: tuple[float, float], rows: int = 1, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """Create an empty figure and its panels."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def legend(figure: Figure, panels: Sequence[Axes], **style: Any) -> None:
    """Draw one legend of some panels above all panels, or where the style says."""
    handles: dict[str, Artist] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(name), handle)
    usual: Style = {"loc": "outside upper left", "ncols": len(handles)}
    figure.legend(list(handles.values()), list(handles), **{**usual, **style})


def rendered(draw: Callable[[], Figure], theme: Style, form: str = "png") -> bytes:
    """Draw a figure in a theme, as PNG or as SVG; equal figures give equal bytes."""
    stream = io.BytesIO()
    with rc_context(cast(Any, theme)):
        draw().savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)
    return stream.getvalue()
