"""Methods that read the question: a clip has one token set per distinct question.

May import: as `tango_core.compressors`.
"""
