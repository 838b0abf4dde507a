"""Tango, in the order in which a clip goes through it.

`method.py` holds the options and the steps; `budgets.py` divides the clip into token groups and
says how many tokens each keeps (host arithmetic); `distances.py` compares tokens under ST-RoPE;
`selection.py` picks and merges.

May import: what `tango_core.compressors` may. Arithmetic that other methods use too goes to
`tango_core/ops`.
"""

from tango_core.compressors.tango.method import Tango

__all__ = ["Tango"]
