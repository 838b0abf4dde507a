"""MLflow: what a run logs, and the upload of a finished run directory.

What lives here: `values.py` (names and values of metrics, parameters, tags), `server.py` (address,
client and reachability of a tracking server), `run_files.py` (what is read of a run directory),
`log_run.py` (the upload), `upload.py` (the upload in a process of its own).

May import: `jobs.results` and the rooms below it, and `pipeline.clock`. Clock, run files and client
are parameters, so that a test can simulate faults. Nothing here may cost a run its results.

A new metric or tag goes into `values.py`; a new file to upload into `run_files.py`.
"""
