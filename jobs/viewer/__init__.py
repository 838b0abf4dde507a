"""`tango view`: questions, answers and kept tokens of runs in a browser.

Reads only run directories and caches; no model is loaded, but the embeddings of questions for
methods that read them. For other packages: `deep_link` (link to a clip) and `panels.ClipPanels`
(a clip as HTML). Imports `config` and `results`.
"""

from jobs.viewer.links import deep_link

__all__ = ["deep_link"]
