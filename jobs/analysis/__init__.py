"""`tango analyze ...`: one module per study; the arithmetic is in `tango_core.analysis`."""
