"""The console script `tango`: one module per group of commands.

Imports every package of `jobs`, inside the functions, so that `--help` stays quick. A new command
goes into the module of its group; what it does goes into the package that does it. What several
commands share is in `options.py`.
"""
