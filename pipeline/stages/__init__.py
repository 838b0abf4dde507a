"""The stages: functions from clip to clip, without Ray.

They are declared in `pipeline/clips.py`; `decode.py`, `compress.py`, `answer.py` and, to time them,
`profile.py` implement them. A stage imports `tango_core`, `pipeline.cache` and `pipeline.rows`,
never an executor. pipeline/README.md explains how to add a stage.
"""
