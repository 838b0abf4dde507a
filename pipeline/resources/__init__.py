"""Resources of a job: pools, devices, memory and CPUs.

`pools.py` says how many workers each stage gets, `sizing.py` the same for the cluster at hand,
`devices.py` which device they get, `gpu_memory.py` whether its GPUs have room for them,
`cgroups.py` which CPUs are left to this process, `node_usage.py` how busy the nodes are.
"""
