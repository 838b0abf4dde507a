"""Methods that prune inside the language model (`LayerPruner`).

What lives here: the methods, and `schedules.py`, which turns an average over the layers into the
share that each layer keeps. `fastv.py` also has the inner steps of hybrids.

May import: what `tango_core.compressors` may. Hooks into a language model's layers are not here,
but in `tango_core/models/language`.

A new stand-alone method subclasses `OneStepPruner` or `StagedPruner` and gets a line in `METHODS`;
a new inner step subclasses `LayerPruner` and gets a line in `INNER` (`hybrid.py`).
"""
