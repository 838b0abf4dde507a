"""Log jobs to MLflow: live metrics while a job runs, and its results.

`live.py` is called by a job, computes its metrics and sends them from a thread. `runs.py` makes all
requests, and uploads results for that thread and for `tango log-run`; `contents.py` makes the
metrics, tags and texts of a finished run.

May import: `jobs.results` and the packages below it, and `pipeline`. MLflow is imported only in the
uploading thread. A store that is unavailable, slow or hanging causes only a warning.
"""
