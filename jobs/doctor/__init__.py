"""`tango doctor`: checks of the machine, the stores and a recipe, before a long job starts.

`machine.py` checks the machine, `recipe.py` places, services and what a recipe names. A check is a
plain function that returns a `CheckResult`. It runs in a child process (`checks.run_checks`) and
imports its libraries when it is called: a library that is missing, hangs or crashes fails its own
check and no other.

May import every package of `jobs` but `cli`, inside the checks what is heavy. A new check goes into
one of the two modules, and into the list in `command.py`.
"""
