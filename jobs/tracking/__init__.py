"""MLflow: a job while it runs, and the upload of its results.

    live.py (driver) -> spool.py (disk) -> sender.py (a process): replay.py, log_run.py -> store

What lives here: `live.py` (a job as the driver reports it), `samples.py` (its numbers under way),
`node_samples.py` (how busy its nodes are), `spool.py` (what it said, on disk), `kept.py` (the same
in the store of a run, in the form of `parts.py`), `live_scores.py` (its scores under way),
`upload.py` (the sending process, as the driver sees it), `sender.py` (that process), `replay.py`
(from the spool to MLflow), `log_run.py` and `results_upload.py` (the results), `repair.py` and
`drivers.py` (runs whose driver died), `upkeep.py` (what a sender does for both now and then),
`mlflow_runs.py` (requests), `server.py` (address, client and reachability of a store),
`empty_store.py` (how a new store begins), `run_files.py` (what is read of a run directory),
`clean_files.py` (what of a file is sent), `values.py`, `description.py`, `datasets.py`,
`predictions.py` (what a run shows).

May import: `jobs.results` and the rooms below it, and `pipeline`. Only the sending process imports
MLflow, once and in its main thread. Clock, run files and client are parameters, so that a test can
simulate faults. Nothing here may cost a run its results, or a job its time.

A new metric or tag goes into `values.py`, or into `samples.py` if it is there while the job runs; a
new file to upload into `run_files.py`.
"""
