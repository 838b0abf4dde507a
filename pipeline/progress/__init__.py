"""What a run has done.

`answers.py` writes its answers, `parts.py` reads the files that hold them, `resume.py` says which
of them stand when the run goes on.
"""
