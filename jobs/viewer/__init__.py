"""What a method keeps of every clip, to look at: `tango view`.

Works from run directories and caches alone; no model is loaded. `links` and `panels` are for other
rooms: a link to one clip, and one clip as a piece of HTML. Imports `config` and `results` of `jobs`.
"""

from jobs.viewer.links import deep_link

__all__ = ["deep_link"]
