"""The batch pipeline: decode on CPUs, encode and prune on actors, cache, answer on other actors.

`plan.py` plans a job, `run.py` runs it with one of the `executors`, `stages` do the work on each
clip, and `cache` stores token sets and features. All file access goes through `storage`, all time
through `runtime/clock.py`. May import `tango_core`, pyarrow and Ray; does not know recipes,
benchmark names or tracking servers. README.md describes the path of a clip.
"""
