"""An object store in memory, under the real `ObjectStore`: its requests fail, its answers get lost.

A PUT is all or nothing. What was refused has had no effect; what was done and not answered has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TypeVar

from pipeline.storage.objects import ObjectStore, Patience
from tests.chaos.simulator.world import START, Process

T = TypeVar("T")

PATIENCE = Patience(first_s=0.0)
TRY_S = 2.0
"""How long a request takes that fails, the pause before the next one included."""


class RefusedError(Exception):
    """An answer 503."""

    response: Mapping[str, Any] = {
        "Error": {"Code": "SlowDown"},
        "ResponseMetadata": {"HTTPStatusCode": 503},
    }


@dataclass(frozen=True)
class Object:
    """One object."""

    data: bytes
    version: str
    written: float


@dataclass(eq=False)
class BucketState:
    """What a store holds, and how it answers.

    Attributes:
        objects: By path.
        down_until: Until when it answers 503.
        refused: Requests that are answered 503.
        unanswered: Writes whose answers get lost.
    """

    objects: dict[str, Object] = field(default_factory=dict)
    down_until: float = -1.0
    refused: int = 0
    unanswered: int = 0
    writes: int = 0

    def read(self, path: str) -> bytes | None:
        """Without a request, for the oracle."""
        found = self.objects.get(path)
        return None if found is None else found.data

    def paths(self) -> list[str]:
        """Of all objects."""
        return sorted(self.objects)

    def store(self, path: str, data: bytes, time: float) -> str:
        """Put an object in place."""
        self.writes += 1
        version = hashlib.md5(data + str(self.writes).encode()).hexdigest()
        self.objects[path] = Object(data, version, time)
        return version

    def put(self, path: str, data: bytes) -> None:
        """Without a request, as something outside of the world does."""
        self.store(path, data, self.objects[path].written)

    def lose(self, path: str) -> None:
        """Without a request."""
        self.objects.pop(path, None)


class SimulatedStore(ObjectStore):
    """The store as one process reaches it."""

    def __init__(
        self,
        state: BucketState,
        process: Process,
        listed: Callable[[str, list[Any]], list[Any]],
    ) -> None:
        super().__init__("s3", PATIENCE)
        self.__dict__["fs"] = Requests(state, process, listed)


@dataclass(frozen=True)
class Requests:
    """The part of fsspec's interface that `ObjectStore` uses."""

    state: BucketState
    process: Process
    listed: Callable[[str, list[Any]], list[Any]]

    def ask(self, what: str, path: str, effect: Callable[[], T], *, writes: bool = False) -> T:
        """One request."""
        self.process.step(f"{what} {path}")
        state, world = self.state, self.process.world
        if state.refused or world.time < state.down_until:
            state.refused = max(0, state.refused - 1)
            self.process.wait(TRY_S, frozen="/.lease" in path)
            raise RefusedError("503 Slow Down")
        value = effect()
        if writes and state.unanswered:
            state.unanswered -= 1
            self.process.wait(TRY_S, frozen="/.lease" in path)
            raise ConnectionResetError("the answer was lost")
        return value

    def _object(self, path: str) -> Object:
        if path not in self.state.objects:
            raise FileNotFoundError(path)
        return self.state.objects[path]

    def info(self, path: str) -> dict[str, Any]:
        return self.ask("HEAD", path, lambda: _line(path, self._object(path)))

    def ls(self, path: str, detail: bool = True) -> list[Any]:
        beginning = f"{path.strip('/')}/"

        def look() -> list[Any]:
            found = {}
            for name, line in self._below(beginning).items():
                head, slash, _ = name[len(beginning) :].partition("/")
                below = beginning + head
                found[below] = {"name": below, "type": "directory", "size": 0} if slash else line
            if not found:
                raise FileNotFoundError(path)
            return list(found.values())

        return self.listed(path, self.ask("LIST", path, look))

    def find(self, path: str, detail: bool = True) -> dict[str, Any]:
        return self.ask("LIST", path, lambda: self._below(f"{path.strip('/')}/"))

    def _below(self, beginning: str) -> dict[str, Any]:
        return {
            name: _line(name, one)
            for name, one in self.state.objects.items()
            if name.startswith(beginning)
        }

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: int
    ) -> bytes:
        return self.ask("GET", path, lambda: self._object(path).data[start:end])

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        def put() -> None:
            if mode == "create" and path in self.state.objects:
                raise FileExistsError(path)
            self._store(path, data)

        self.ask("PUT if absent" if mode == "create" else "PUT", path, put, writes=True)

    def put_file(self, source: str, path: str) -> None:
        data = Path(source).read_bytes()
        self.ask("PUT", path, lambda: self._store(path, data), writes=True)

    def rm_file(self, path: str) -> None:
        self.ask("DELETE", path, lambda: self.state.objects.pop(path, None), writes=True)

    def cp_file(self, path: str, new_path: str) -> None:
        self.ask("COPY", path, lambda: self._store(new_path, self._object(path).data), writes=True)

    def call_s3(self, method: str, **names: str) -> dict[str, Any]:
        """As far as the age of an object is asked for: the store's own clock."""
        assert method == "head_object"
        now = format_datetime(START + timedelta(seconds=self.process.world.time), usegmt=True)
        headers = {"HTTPHeaders": {"date": now}}
        return {**self.info("/".join(names.values())), "ResponseMetadata": headers}

    def _store(self, path: str, data: bytes) -> str:
        return self.state.store(path, bytes(data), self.process.world.time)


def _line(path: str, one: Object) -> dict[str, Any]:
    return {
        "name": path,
        "type": "file",
        "size": len(one.data),
        "ETag": one.version,
        "LastModified": START + timedelta(seconds=one.written),
    }
