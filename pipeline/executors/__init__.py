"""Ways to run a plan: a local loop, and Ray Data with all that Ray needs around it.

Only `ray_data.py`, `cluster.py` and `attempts.py` import ray.
"""
