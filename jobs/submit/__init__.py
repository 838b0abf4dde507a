"""Jobs on a Ray cluster: `tango submit` and `tango jobs`.

`request.py` describes a job, `package.py` packs its files (without secrets and files that git
ignores), `head.py` is the client of the cluster's head, `submit.py` starts a job or finds it, and
`follow.py` shows logs, exit codes and lists of jobs. `on_cluster.py` is uploaded and starts the job
on the cluster. Imports `config`, `report` and `units` of `jobs`, `pipeline`, and Ray's Jobs API.
"""
