"""Secrets stay out of every text that is shown, logged or stored.

One function knows what a secret looks like: the user part of a URL, the signature in its query,
tokens of known forms, and the values of environment variables whose names say that they are secret.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

HIDDEN = "***"

# Up to the last @ before a slash; behind a colon that is no port a slash may be part of a password.
_USER_PART = re.compile(
    r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]+:/{1,2})"
    r"(?:[^\s/:'\"<>]*:(?!\d+/)[^\s'\"<>]*|[^\s/'\"<>]+)@"
)
_SECRET_NAMES = (
    r"x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|signature|sig|"
    r"awsaccesskeyid|googleaccessid|key-pair-id|policy|"
    r"[a-z_-]*(?:token|secret|password|passwd|api_?key|access_?key)[a-z_-]*"
)
_QUERY = re.compile(rf"(?i)(?P<name>[?&;](?:{_SECRET_NAMES})=)[^&\s'\"<>]+")
_HEADER = re.compile(r"(?i)(?P<name>\b(?:bearer|basic)\s+)[a-z0-9+/_.=~-]{8,}")
_TOKENS = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16})\b")
_SECRET_VARIABLE = re.compile(r"(?i)(secret|token|password|passwd|credential|api_?key|access_?key)")
_SHORTEST = 8  # a shorter value would hide ordinary words
_NO_SECRETS = frozenset({"true", "false", "none", "disabled", "required"})


def redacted(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text with every secret in it replaced by `***`.

    Args:
        text: A message, a URL, a line of a log.
        environment: Variables whose values are hidden if their names say so; `None` for those of
            this process.
    """
    for value in _secret_values(os.environ if environment is None else environment):
        text = text.replace(value, HIDDEN)
    text = _USER_PART.sub(rf"\g<scheme>{HIDDEN}@", text)
    for pattern in (_QUERY, _HEADER):
        text = pattern.sub(rf"\g<name>{HIDDEN}", text)
    return _TOKENS.sub(HIDDEN, text)


def redacted_inside(value: Any) -> Any:
    """Plain data with every text in it redacted, and numbers as they are.

    Redacting what a number is written as would leave no number: a secret can be one.
    """
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {redacted_inside(key): redacted_inside(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted_inside(child) for child in value]
    return value


def holds_credentials(text: str) -> bool:
    """Whether a setting is a URL with a password, a signature or a token in it."""
    return "://" in text and redacted(text, {}) != text


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is a secret by its name or its value.

    Stricter than what `redacted` hides: a short password counts, a short number does not
    (`MAX_TOKENS`), nor does the place of a file with secrets.
    """
    named = _says_secret(name) and _may_be_secret(value)
    number = len(value) < _SHORTEST and value.isdigit()
    return redacted(value) != value or (named and not number and value != "")


def _secret_values(environment: Mapping[str, str]) -> Iterator[str]:
    """Values to hide as they are and as they stand in a URL, the longest first."""
    found = {
        value
        for name, value in environment.items()
        if _says_secret(name) and len(value) >= _SHORTEST and _may_be_secret(value)
    }
    yield from sorted(found | {quote(value, safe="") for value in found}, key=len, reverse=True)


@functools.lru_cache(maxsize=1024)
def _says_secret(name: str) -> bool:
    """Whether a variable's name says that it is a secret; asked for every text that is shown."""
    return bool(_SECRET_VARIABLE.search(name))


def _may_be_secret(value: str) -> bool:
    """Whether a value is neither an ordinary word nor the place of a file with secrets."""
    return value.lower() not in _NO_SECRETS and not value.startswith(("/", "~", "file:"))


class RedactingFilter(logging.Filter):
    """Redacts what passes a handler: the message with its arguments, and a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record's text in place; every record passes."""
        record.msg, record.args = redacted(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redacted(record.exc_text)
        return True


def first_with_credentials(value: Any, key: str = "") -> str | None:
    """Dotted key of the first text in nested settings that holds credentials; `None` if none."""
    if isinstance(value, str):
        return key if holds_credentials(value) else None
    children: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping):
        children = iter(value.items())
    elif isinstance(value, (list, tuple)):
        children = iter(enumerate(value))
    found = (first_with_credentials(child, f"{key}.{name}".lstrip(".")) for name, child in children)
    return next((at for at in found if at is not None), None)
