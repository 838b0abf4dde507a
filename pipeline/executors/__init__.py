"""Executors of a plan: `local.py` in one process, `ray_data.py` on Ray Data.

`pipeline/settings.py` chooses one for `executor: auto`. The other modules support Ray: `cluster.py`
connects to or starts a cluster and limits the wait for the replacement of a lost node, `workers.py`
runs stages in workers, limits the attempts at clips whose worker dies, and transports reports. Ray
is imported only when a job needs it.
An executor reads which stages there are from `pipeline.clips`; a new one is a module with `stream`,
and a line in `pipeline/run.py`.
"""
