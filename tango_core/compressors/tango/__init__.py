"""The compressor Tango.

In processing order: `method.py` holds the options and the steps; `budgets.py` divides the clip into
token groups with budgets (on the host); `selection.py` compares tokens under ST-RoPE, selects and
merges.

May import: what `tango_core.compressors` may. Arithmetic that other methods use too goes to
`tango_core/ops`.
"""

from tango_core.compressors.tango.method import Tango

__all__ = ["Tango"]
