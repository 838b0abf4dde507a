"""The batch pipeline: decode on CPUs, encode and prune on actors, cache, answer on other actors.

`plan.py` says what to do, `run.py` does it with one of the `executors`, `stages` hold the work,
`cache` holds what was computed. `storage.py` is the only way to files of ours, `clock.py` the only
way to time. May import `tango_core`, pyarrow and Ray; knows no recipe, no benchmark by name and no
tracking server. README.md tells the life of a clip.
"""
