"""Read YAML written by users: one document of limited size, with unique keys."""

from __future__ import annotations

from typing import Any

import yaml

from tango_core.errors import InputError

MAX_BYTES = 1 << 18
"""Maximum size; a video or a checkpoint named by mistake is not read into memory."""


class YamlError(InputError):
    """Invalid YAML; the one-line message is meant to follow the name of the file or option."""


class _Loader(yaml.SafeLoader):
    """Loader that refuses duplicate keys, of which PyYAML would silently keep the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """See `SafeLoader`; merged mappings (`<<`) may repeat keys."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise YamlError(f"repeats the key {key.value!r} on line {line}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(text: str | bytes) -> Any:
    """Read one YAML document of plain values.

    Raises:
        YamlError: If it is not UTF-8 or not YAML, larger than `MAX_BYTES`, or repeats a key in a
            mapping.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"is larger than the maximum of {MAX_BYTES >> 10} KiB")
    try:
        return yaml.load(text.decode() if isinstance(text, bytes) else text, Loader=_Loader)
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(f"is not YAML: {' '.join(str(error).split())}") from error
