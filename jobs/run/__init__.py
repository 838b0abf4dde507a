"""From a recipe to a finished run: `evaluate`, `sweep`, `precompute` and the driver they share.

Imports `config`, `results`, `report` and `tracking`. What a run computes is decided in `build.py`,
how it goes on after a stop in `directories.py` and `driver.py`.
"""
