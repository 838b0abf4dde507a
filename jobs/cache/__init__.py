"""`tango cache ...`: the lines that the commands print; `pipeline.cache` does the work.

`table.py` writes the table of `ls`, `maintenance.py` runs all other commands. May import
`pipeline`, `jobs.report` and what these import. A new command goes into `maintenance.py` and
`jobs/cli/cache.py`.
"""
