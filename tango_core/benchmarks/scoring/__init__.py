"""Reading replies and averaging scores: letters, free-form answers, tables of means.

Imports `tango_core.types` only. A rule of one harness goes into `protocols` or a benchmark's room.
"""
