"""Ways to run a plan: `local.py` in a plain loop, `ray_data.py` on Ray Data.

`choice.py` says which of both a job gets. `attempts.py` is for both: a clip whose worker dies is
tried a few times. The rest is what Ray needs around it: `cluster.py` joins or starts one,
`workers.py` runs stages in its workers, `ray_reports.py` carries what these report, and
`lost_nodes.py` bounds the wait for a node. Nothing imports what imports ray before a job needs it.
An executor reads which stages there are from `pipeline.stages.declarations`; a new one is a module
with `stream`, and a line in `pipeline/run.py`.
"""
