"""Jobs on a Ray cluster: `tango submit` and `tango jobs`.

`request.py` is what is sent, `package.py` packs it (files that git ignores and secrets stay here),
`head.py` talks to the cluster's head, `submit.py` starts a job or finds it, `follow.py` shows its
log, its exit code and lists of jobs. `on_cluster.py` is sent along and runs there. Imports
`config`, `report` and `units` of `jobs`, `pipeline`, and Ray's Jobs API; no job runs here.
"""
