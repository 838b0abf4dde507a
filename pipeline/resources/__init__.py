"""Resources of a job: pools, devices, memory and CPUs.

`pools.py` defines and checks pools, `devices.py` chooses their devices, `gpu_memory.py` checks
GPU memory, `cgroups.py` counts CPUs, and `node_usage.py` reads how busy the nodes are.
"""
