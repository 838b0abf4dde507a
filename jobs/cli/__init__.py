"""The console script `tango`: one module per group of commands.

The commands only parse their options and call the other packages of `jobs`, which are imported
inside the functions so that `--help` stays fast. Options shared by several commands are in
`options.py`.
"""
