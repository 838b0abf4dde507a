"""Output of the commands `tango cache ...`; the work is done by `pipeline.cache`.

`table.py` formats the table of `ls`, `maintenance.py` runs all other commands. May import
`pipeline`, `jobs.report` and what these import. A new command goes into `maintenance.py` and
`jobs/cli/cache.py`.
"""
