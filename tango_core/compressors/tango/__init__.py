"""Tango: the method (`method.py`), its budgets, its distances and its selection."""

from tango_core.compressors.tango.method import Tango

__all__ = ["Tango"]
