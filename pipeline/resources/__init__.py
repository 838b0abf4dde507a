"""Resources of a job: pools with their devices and memory, and the CPUs of this machine."""
