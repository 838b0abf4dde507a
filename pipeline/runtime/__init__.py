"""Processes, threads, signals and time.

`stopping.py` handles signals, `background.py` runs the executor in a thread while the main thread
waits for signals and gives stages threads to read ahead and to write, `child.py` and
`child_main.py` run code in a killable process, `process.py` queries and ends processes, and
`clock.py` provides time. Clocks and storages are passed as parameters, so that tests can simulate
time and faults.
"""
