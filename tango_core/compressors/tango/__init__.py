"""Tango, in the order in which a clip goes through it.

`method.py` holds the options and the steps; `budgets.py` divides the clip into token groups and
says how many tokens each keeps (host arithmetic); `distances.py` compares tokens under ST-RoPE;
`select.py` picks and merges, on a CPU by the batches of `batches.py`, on an accelerator by
`on_device.py`; both decide by `clusters.py`.

May import: what `tango_core.compressors` may. Arithmetic that other methods use too goes to
`tango_core/ops`.
"""

from tango_core.compressors.tango.method import Tango

__all__ = ["Tango"]
