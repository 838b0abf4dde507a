"""Resources of a job: pools, devices, memory and CPUs.

`pools.py` defines and checks pools, `devices.py` chooses their devices and limits
their GPU memory, `cgroups.py` counts CPUs, and `node_usage.py` reads how busy the nodes are.
"""
