"""Log jobs to MLflow: live metrics while a job runs, and its results.

`live.py` is called by a job and sends its metrics from a thread; `numbers.py` computes them.
`upload.py` uploads results, for that thread and for `tango log-run`, through the requests in
`runs.py`. `contents.py` makes the metrics, tags and texts of a finished run, and `server.py`
creates the client of a store.

May import: `jobs.results` and the packages below it, and `pipeline`. MLflow is imported only in the
uploading thread. A store that is unavailable, slow or hanging causes only a warning.
"""
