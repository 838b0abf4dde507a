"""Takes passwords and keys out of texts that people, logs or servers will see."""

from __future__ import annotations

import os
import re

_HIDDEN = "***"
_USER_INFO = re.compile(r"(?<=://)[^/\s@'\"]+@")
_KEY = r"[\w-]*(?:secret|token|password|passwd|signature|credential|access_?key|api_?key|sas)[\w-]*"
_ASSIGNED = re.compile(rf"(?i)(?<=[?&;])({_KEY}|key|pass|pwd|sig)=[^&;\s'\"]+")
# What the usual credential chains read; a value that turns up in a text is taken out of it.
_ENVIRONMENT = re.compile(rf"(?i){_KEY}$")
_SHORTEST = 8


def redacted(text: str) -> str:
    """The text without its secrets.

    These are the user part of URLs, keys in their query strings, and every value of the environment
    that is named like a secret.
    """
    text = _USER_INFO.sub(f"{_HIDDEN}@", text)
    text = _ASSIGNED.sub(rf"\1={_HIDDEN}", text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _ENVIRONMENT.match(name) and value in text:
            text = text.replace(value, _HIDDEN)
    return text
