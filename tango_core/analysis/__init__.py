"""Analyses of encoders and methods over clips, as in the publication and beyond it.

One module per analysis: it takes signals of `VisualFeatures`, layers of a tower or plans of
methods, clip by clip, and returns a report of plain numbers. `sinks.py` ranks positions, sorts and
averages signals and measures a tower's layers, `clusters.py` counts connected pieces of clusters,
`coverage.py` compares all tokens with the nearest kept ones, `evidence.py` measures how much of an
object is kept. Imports torch and scipy; `jobs/analysis` decodes, encodes, draws and writes files.
"""
