"""Ways to run a plan: `local.py` in a plain loop, `ray_data.py` on Ray Data.

`cluster.py`, `address.py` and `attempts.py` are what Ray needs around it. Only `ray_data.py` and
`cluster.py` import ray, and nothing imports these two before a job needs Ray. An executor reads
which stages there are from `pipeline.stages.declarations`; a new one is a module with `stream`, and
a line in `pipeline/run.py`.
"""
