"""The console script `tango`: one module per group of commands.

A command is a function that `options.command` adds to an app: its signature has the types and
defaults, its docstring the help. Commands call the other packages of `jobs`, which are imported
inside the functions so that `--help` stays fast, and return the exit code.
"""
