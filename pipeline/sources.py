"""Fingerprints of the video files of clips, on a disk or in a store."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cache.fingerprint import SourceMissingError, source_fingerprint
from pipeline.storage.mirror import Mirror
from pipeline.storage.objects import ObjectStore, Stored
from pipeline.storage.urls import Url, UrlError, is_url, place
from pipeline.storage.videos import VideoCache, fingerprint_of, remote_fingerprint

# So many single objects of one folder are asked for before the folder is listed instead.
_SINGLE = 8


class Sources:
    """Identifies sources; those of stores by their listings, so that no clip costs a request.

    What a store said of a video once holds as long as this lives: with and without `hash_content`
    it is the same version.

    Args:
        mirrors: Of the benchmarks whose root is in a store.
        videos: Where a video is fetched to if its bytes are to identify it.
    """

    def __init__(self, mirrors: Sequence[Mirror], videos: VideoCache) -> None:
        self._mirrors, self._videos = mirrors, videos
        self._asked: dict[str, int] = {}
        self._told: dict[str, str] = {}
        self._listed: dict[str, dict[str, Stored]] = {}

    def __call__(self, path: str, hash_content: bool) -> str:
        """See `source_fingerprint`.

        Raises:
            SourceMissingError: If there is nothing at `path`, or it is a URL with a key in it.
            OSError: If a store does not answer.
        """
        if not is_url(path):
            return source_fingerprint(path, hash_content)
        try:
            found = self._of_store(path)
            if not hash_content:
                return found
            with self._videos.fetched(path, found) as local:
                return source_fingerprint(local, hash_content=True)
        except (FileNotFoundError, UrlError) as error:
            raise SourceMissingError(str(error)) from error

    def _of_store(self, path: str) -> str:
        """By a listing if there is one."""
        for mirror in self._mirrors:
            found = mirror.fingerprint(path)
            if found is not None:
                return found
        if path in self._told:
            return self._told[path]
        where = place(path)
        assert isinstance(where, Url)
        folder = str(where.parent)
        self._asked[folder] = self._asked.get(folder, 0) + 1
        if self._asked[folder] > _SINGLE and folder not in self._listed:
            listing = ObjectStore(where.scheme).listing(where.parent.path)
            self._listed[folder] = {entry.name: entry for entry in listing if entry.is_file}
        entry = self._listed.get(folder, {}).get(where.name)
        if entry:
            return fingerprint_of(where, [entry])
        self._told[path] = remote_fingerprint(path)
        return self._told[path]
