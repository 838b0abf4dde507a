"""Progress of a run: finished answers, and what a resumed run still has to do.

`answers.py` writes answers and determines which of them are still valid when a run is resumed;
`parts.py` reads the files that hold them.
"""
