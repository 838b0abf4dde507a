"""Processes, threads, signals and time.

`stopping.py` is what a signal does, `background.py` the thread of the executor beside the main
thread that hears signals, `child.py` and `child_main.py` a process that can be killed, `process.py`
processes of this machine, `clock.py` the only way to time. Time and files are parameters, so
tests simulate faults.
"""
