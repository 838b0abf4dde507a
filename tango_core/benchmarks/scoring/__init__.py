"""Reading replies: letters, free-form answers, spans of time.

Imports `tango_core.types` only. A rule of one harness goes into `protocols` or into the
module of a benchmark.
"""
