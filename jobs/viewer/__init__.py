"""`tango view`: questions, answers and kept tokens of runs in a browser.

Works from run directories and caches alone; no model is loaded. For other packages: `deep_link`,
a link to one clip, `list_link`, one to the questions of a filter, and `panels.ClipPanels`, one clip
as HTML. Imports `config` and `results`.
"""

from jobs.viewer.links import deep_link, list_link

__all__ = ["deep_link", "list_link"]
