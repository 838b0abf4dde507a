"""`tango analyze ...`: one module per analysis; `tango_core.analysis` does the arithmetic.

Imports `config` and `run` for the clips and the model of a recipe. A new analysis is a module here,
a module there, and a command in `jobs/cli/tools.py`.
"""
