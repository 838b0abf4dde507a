"""`tango doctor`: checks of the machine, the stores and a recipe, before a long job starts.

A check is a plain function of `checks.py` that returns a `CheckResult`. It runs in a child process
(`command.run_checks`) and imports its libraries when it is called: a library that is missing, hangs
or crashes fails its own check and no other. A new check goes into `checks.py`, and into the list in
`command.py`. May import every package of `jobs` but `cli`, inside the checks what is heavy.
"""
