"""Redact secrets in strings that are shown, logged or stored.

Secrets are the user part of a URL, signatures in its query, tokens of known formats, values
assigned to names such as `password`, and the values of environment variables with such names.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

HIDDEN = "***"

# Lengths are bounded to avoid matching in quadratic time.
# Matches up to the last @ before a slash. After a colon that does not begin a port number, a slash
# may be part of a password.
_USER_PART = re.compile(
    r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}:/{1,2})"
    r"(?:[^\s/:'\"<>]{0,256}:(?!\d{1,5}/)[^\s'\"<>]{0,256}|[^\s/'\"<>]{1,256})@"
)
# "name=value", "name: value", "--name value", '"name": "value"'; a character of [?&;#] before the
# name means that it is part of a URL's query.
_ASSIGNED = re.compile(
    r"(?P<query>[?&;#])?(?<![\w-])(?P<option>--)?(?P<name>[A-Za-z_][\w-]{0,63})"
    r"(?P<sign>['\"]?\s?[=:]\s?|(?<=\w)\s(?=[^\s-]))"
    r"(?P<value>\"[^\"\n]{0,4096}\"?|'[^'\n]{0,4096}'?|[^\s&'\"<>,;)}\]]{1,4096})"
)
_PASSWORD = re.compile(r"(?i)(?:password|passwd|passphrase|pwd)$")
# Names with these endings hold secrets, except for tokenizer settings such as "eos_token".
_SECRET_END = re.compile(
    r"(?i)(?:password|passwd|passphrase|pwd|secret|credentials?|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|secret[_-]?key|(?<!eos_)(?<!bos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!cls_)"
    r"(?<!mask_)(?<!image_)(?<!video_)(?<!first_)(?<!per_)token)$"
)
# Further names that hold secrets in a URL's query.
_SECRET_IN_QUERY = re.compile(
    r"(?i)^(?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|key"
    r"|signature|sig|awsaccesskeyid|googleaccessid|key-pair-id|policy)$"
    r"|token|secret|password|passwd|api_?key|access_?key"
)
_SIGN = re.compile(r"[\s:=]")
_HEADER = re.compile(r"(?i)(?P<name>\b(?:bearer|basic)\s+)[a-z0-9+/_.=~-]{8,}")
_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{20,}|xox[abpr]-[\w-]{10,})\b"
)
_SECRET_VARIABLE = re.compile(r"(?i)(secret|token|password|passwd|credential|api_?key|access_?key)")
_SHORTEST = 8  # redacting shorter values would also hide ordinary words
_NO_SECRETS = frozenset({"true", "false", "none", "disabled", "required"})


def redacted(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Replace every secret in a string by `***`.

    Args:
        text: A message, a URL, a log line.
        environment: Environment variables; the values of those with names such as `API_KEY` are
            redacted. `None` for the environment of this process.
    """
    return next(iter(all_redacted([text], environment)))


def all_redacted(
    texts: Iterable[str], environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Apply `redacted` to many strings; the environment, whose reading is slow, is read once."""
    values = [*_secret_values(os.environ if environment is None else environment)]
    for text in texts:
        for value in values:
            text = text.replace(value, HIDDEN)
        if _SIGN.search(text):  # only `_TOKENS` match without one
            text = _USER_PART.sub(rf"\g<scheme>{HIDDEN}@", text)
            text = _HEADER.sub(rf"\g<name>{HIDDEN}", text)
            text = _without_assigned(text)
        yield _TOKENS.sub(HIDDEN, text)


def _without_assigned(text: str) -> str:
    """Redact values that are assigned to names such as `password` or `api_key`."""
    parts: list[str] = []
    end = 0
    at = 0
    while found := _ASSIGNED.search(text, at):
        at = found.end("name")
        if not _is_assigned_secret(found):
            continue
        start, at = found.span("value")
        if found["query"] and _PASSWORD.search(found["name"]):
            at = next((i for i in range(start, len(text)) if text[i] in "&'\"<>\n"), len(text))
        quote_ = text[start] if text[start] in "'\"" else ""
        parts += [text[end:start], quote_, HIDDEN, quote_ if text[at - 1] == quote_ else ""]
        end = at
    return "".join([*parts, text[end:]])


def _is_assigned_secret(found: re.Match[str]) -> bool:
    """Whether a match of `_ASSIGNED` assigns a secret."""
    name, value, sign = found["name"], found["value"].strip("'\""), found["sign"]
    if found["query"] and sign == "=":
        return bool(_SECRET_IN_QUERY.search(name)) and len(value) > 0
    if not _SECRET_END.search(name) or not value or value == HIDDEN:
        return False
    if sign.isspace() and not found["option"]:
        return False
    # Not secrets: "token: 5", or a sentence such as "it needs a token: set it".
    plain = value.isdigit() or (":" in sign and value.isalpha())
    is_word = plain and not _PASSWORD.search(name)
    return not is_word and value.lower() not in _NO_SECRETS and _may_be_secret(value)


def redacted_inside(value: Any) -> Any:
    """Redact all strings in nested plain data; numbers stay unchanged.

    Numbers are not redacted, because `***` would turn them into strings.
    """
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {redacted_inside(key): redacted_inside(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted_inside(child) for child in value]
    return value


def holds_credentials(text: str) -> bool:
    """Whether a setting is a URL that contains a password, a signature or a token."""
    return "://" in text and redacted(text, {}) != text


def is_secret(name: str, value: str) -> bool:
    """Whether the name or the value of an environment variable indicates a secret.

    Stricter than `redacted`: short passwords count as secrets; short numbers (`MAX_TOKENS`) and
    paths of files with secrets do not.
    """
    named = bool(_SECRET_VARIABLE.search(name)) and _may_be_secret(value)
    number = len(value) < _SHORTEST and value.isdigit()
    return redacted(value) != value or (named and not number and value != "")


def _secret_values(environment: Mapping[str, str]) -> Iterator[str]:
    """Values to redact, both plain and URL-quoted, the longest first."""
    found = {
        value
        for name, value in environment.items()
        if _SECRET_VARIABLE.search(name) and len(value) >= _SHORTEST and _may_be_secret(value)
    }
    yield from sorted(found | {quote(value, safe="") for value in found}, key=len, reverse=True)


def _may_be_secret(value: str) -> bool:
    """Whether a value is neither an ordinary word nor the path of a file with secrets."""
    return value.lower() not in _NO_SECRETS and not value.startswith(("/", "~", "file:"))


class RedactingFilter(logging.Filter):
    """Logging filter that redacts messages and tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record in place; no record is dropped."""
        record.msg, record.args = redacted(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redacted(record.exc_text)
        return True
