"""Progress of a run: finished answers, and what a resumed run still has to do.

`answers.py` writes its answers, `parts.py` reads the files that hold them, `resume.py` says which
of them stand when the run goes on.
"""
