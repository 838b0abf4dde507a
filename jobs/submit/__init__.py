"""Send a job to a Ray cluster, watch it there, find it again: `tango submit` and `tango jobs`.

`request.py` says what is sent, `package.py` packs it (`ignored.py` leaves out what git ignores),
`head.py` talks to the cluster's head, `follow.py` shows a job's log and ends with its exit code,
`submit.py` puts these together, `listing.py` prints jobs. `on_cluster.py` is sent along and runs
there. The room imports `config`, `report` and `units` of `jobs`, `pipeline`, and Ray's Jobs API;
nothing of it runs a job itself.
"""
