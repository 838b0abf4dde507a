"""Fingerprint the video files of clips, on a disk or in an object store."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cache.fingerprint import SourceMissingError, source_fingerprint
from pipeline.storage.copies import Mirror, VideoCache, fingerprint_of, remote_fingerprint
from pipeline.storage.objects import ObjectStore, Stored
from pipeline.storage.urls import Url, UrlError, is_url, place

# Number of single requests for objects of one folder after which the folder is listed instead.
_SINGLE = 8


class Sources:
    """Fingerprints sources; uses listings of object stores instead of a request per clip.

    Responses are cached for the lifetime of this object, so that fingerprints with and without
    `hash_content` refer to the same version of a video.

    Args:
        mirrors: Mirrors of the benchmarks whose root is in an object store.
        videos: Cache of downloaded videos, used if a video is identified by its bytes.
    """

    def __init__(self, mirrors: Sequence[Mirror], videos: VideoCache) -> None:
        self._mirrors, self._videos = mirrors, videos
        self._num_requests: dict[str, int] = {}
        self._fingerprints: dict[str, str] = {}
        self._listings: dict[str, dict[str, Stored]] = {}

    def __call__(self, path: str, hash_content: bool) -> str:
        """See `source_fingerprint`.

        Raises:
            SourceMissingError: If `path` does not exist, or is a URL with credentials.
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
        """Fingerprint of an object, from a listing if possible."""
        for mirror in self._mirrors:
            found = mirror.fingerprint(path)
            if found is not None:
                return found
        if path in self._fingerprints:
            return self._fingerprints[path]
        where = place(path)
        assert isinstance(where, Url)
        folder = str(where.parent)
        self._num_requests[folder] = self._num_requests.get(folder, 0) + 1
        if self._num_requests[folder] > _SINGLE and folder not in self._listings:
            listing = ObjectStore(where.scheme).listing(where.parent.path)
            self._listings[folder] = {entry.name: entry for entry in listing if entry.is_file}
        entry = self._listings.get(folder, {}).get(where.name)
        if entry:
            return fingerprint_of(where, [entry])
        self._fingerprints[path] = remote_fingerprint(path)
        return self._fingerprints[path]
