"""Ways to run a plan: a local loop, and Ray Data with all that Ray needs around it.

Only `ray_data.py` and `cluster.py` import ray; nothing imports these two before a job needs Ray.
"""
