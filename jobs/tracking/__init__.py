"""MLflow: which values a run logs (`values.py`), and the upload itself (`upload.py`).

Imports `results`. Nothing here may cost a run its results.
"""
