"""Resources of a job: pools, devices, memory and CPUs.

`pools.py` defines and checks pools, chooses their devices and limits their GPU memory, and
`cgroups.py` counts CPUs.
"""
