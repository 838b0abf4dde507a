"""MLflow: live metrics of a job, and its results.

`live.py` is what a job calls: it writes numbers to `tracking/events.jsonl` of the run directory
(`events.py`), and a thread sends them.
`upload.py` sends events and results, for that thread and for `tango log-run`, with the requests of
`mlflow_runs.py`. `numbers.py` computes the numbers of a job at work, `shown.py` what MLflow shows
of a finished run, `server.py` is the address and the client of a store.

May import: `jobs.results` and the packages below it, and `pipeline`. Only `mlflow_client` imports
MLflow, in the thread that sends. A store that is away, slow or hanging costs a job a warning.
"""
