"""`tango doctor`: checks of the machine, the stores and a recipe, before a long job starts.

Each module holds the checks of one topic. A check is a plain function that returns a `CheckResult`.
It runs in a child process (`checks.run_checks`) and imports its libraries when it is called:
a library that is missing, hangs or crashes fails its own check and no other.

May import every room of `jobs` but `cli`, inside the checks what is heavy. A new check goes into
the module of its topic, and into the list in `command.py`.
"""
