"""Studies of what encoders do with every clip, whatever it shows, as in the publication.

One module per study: it takes signals of `VisualFeatures` clip by clip and returns a report that
becomes JSON. Imports torch alone; `jobs/analysis` decodes, encodes and writes the file.
"""
