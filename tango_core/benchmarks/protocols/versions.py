"""Versions of the harnesses: `vlmevalkit@2026-05` is VLMEvalKit by the rules of that month.

Only `Protocol.harness_score` differs between versions of a harness. Prompts, frames, our strict
reading and with them the headline accuracy are the same under all of them. A bare name stands for
the newest version; results record the name that the recipe gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.subtitles import SHOWN

# Harness -> its newest version here, and the one before the rules changed.
VERSIONS = {"vlmevalkit": ("e8e78f05", "2026-05"), "lmms_eval": ("0.7.3", "2024-10")}


def harness_of(name: str) -> str:
    """Return a protocol's name without the version: what it asks and shows depends on no more.

    Subtitles stay in the name: with them other prompts are asked.
    """
    return name.partition("@")[0].removesuffix(SHOWN) + (SHOWN if name.endswith(SHOWN) else "")


def in_versions(protocol: Protocol, older: Protocol | None = None) -> dict[str, Protocol]:
    """List a harness's protocol under its bare name and under that of each version.

    Args:
        protocol: By the newest rules; its name begins with the harness's.
        older: By the rules before they changed; `None` where they did not.
    """
    newest, before = next(v for start, v in VERSIONS.items() if protocol.name.startswith(start))
    by_name = {
        protocol.name: protocol,
        f"{protocol.name}@{newest}": protocol,
        f"{protocol.name}@{before}": older or protocol,
    }
    return {name: replace(found, name=name) for name, found in by_name.items()}


def under_each_harness(protocol: Protocol) -> Mapping[str, Protocol]:
    """The `protocols` of a benchmark that no harness has: its own one, whichever is named."""
    return dict.fromkeys(VERSIONS, protocol)


def listed_name(protocols: Mapping[str, Protocol], name: str) -> str:
    """Return the name by which a benchmark lists a protocol.

    Where it does not list a version of a harness, that version has the rules of the bare name.

    Args:
        protocols: Those of the benchmark, by name.
        name: E.g. `"vlmevalkit@2026-05"`.
    """
    harness, _, version = name.partition("@")
    known = version in VERSIONS.get(harness, ()) and harness in protocols
    return harness if known and name not in protocols else name
