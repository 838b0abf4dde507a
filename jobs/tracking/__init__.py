"""Log jobs to MLflow: live metrics while a job runs, and its results.

`live.py` is called by a job: it writes metrics (`numbers.py`) to `tracking/events.jsonl` in the run
directory (`events.py`), and a thread uploads them. `upload.py` uploads events and results, for that
thread and for `tango log-run`, through the requests in `runs.py`. `shown.py` makes the metrics,
tags and texts of a finished run, and `server.py` the client of a store.

May import: `jobs.results` and the packages below it, `jobs.report.formatting`, and `pipeline`.
MLflow is imported only in the uploading thread. A store that is unavailable, slow or hanging causes
only a warning.
"""
