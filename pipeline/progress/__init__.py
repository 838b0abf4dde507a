"""Progress of a run: finished answers, and what a resumed run still has to do.

`answers.py` writes answers, `parts.py` reads the files that hold them, and `resume.py` determines
which answers are still valid when a run is resumed.
"""
