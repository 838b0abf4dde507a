"""Jobs on a Ray cluster: `tango submit` and `tango jobs`.

`request.py` describes a job and packs its files (without secrets and files that git ignores),
`head.py` starts, finds and follows jobs on the cluster with Ray's `JobSubmissionClient`.
`on_cluster.py` is uploaded and starts the job there. Imports `config`, `report` and `units` of
`jobs`, `pipeline`, and Ray's Jobs API.
"""
