"""The stages: functions from clip to clip, without Ray.

`declarations.py` says once what each stage is; `decode.py`, `compress.py`, `answer.py` and, for
latencies, `profile.py` do the work. `child.py` is a process that can be killed. A stage imports
`tango_core`, `pipeline.cache` and `pipeline.rows`, never an executor. pipeline/README.md lists what
a new stage needs.
"""
