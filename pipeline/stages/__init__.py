"""The stages: functions from clip to clip, without Ray.

`declarations.py` declares the stages; `decode.py`, `compress.py`, `answer.py` and, for latencies,
`profile.py` implement them. A stage imports `tango_core`, `pipeline.cache` and `pipeline.rows`,
never an executor. pipeline/README.md explains how to add a stage.
"""
