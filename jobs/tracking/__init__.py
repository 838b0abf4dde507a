"""Log jobs to MLflow: live metrics while a job runs, and its results.

`live.py` is called by a job: it writes metrics to `tracking/events.jsonl` in the run directory
(`events.py`), and a thread uploads them. `upload.py` uploads events and results, for that thread
and for `tango log-run`, through the requests in `mlflow_runs.py`. `numbers.py` computes the live
metrics, `shown.py` the metrics, tags and texts of a finished run, and `server.py` creates the
client of a store.

May import: `jobs.results` and the packages below it, and `pipeline`. MLflow is imported only in the
uploading thread. A store that is unavailable, slow or hanging causes only a warning.
"""
