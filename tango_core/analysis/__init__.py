"""Studies of what encoders and methods do with every clip, as in the publication and beyond it.

One module per study: it takes signals of `VisualFeatures`, layers of a tower or plans of methods,
clip by clip, and returns a report of plain numbers. `sinks.py` ranks positions, `attention.py`
sorts and averages the signals, `activations.py` looks into a tower's layers, `clusters.py` counts
the pieces of clusters, `coverage.py` says how well kept tokens stand for all, `evidence.py` what is
left of an object; `correlation.py` is what several need. Imports torch alone; `jobs/analysis`
decodes, encodes, draws and writes the files.
"""
