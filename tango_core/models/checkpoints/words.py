"""Digest of a checkpoint's tokenizer, chat template and generation settings.

Cached visual tokens do not depend on it, so it is no part of their identity; replies do.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_FILES = (
    "added_tokens.json",
    "chat_template*",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer*",
    "vocab*",
    "*.jinja",
    "*.model",
)


def words_digest(path: str, revision: str | None) -> str:
    """Digest of the tokenizer, the chat template and the tokens that end a reply.

    Args:
        path: Directory or hub id of the checkpoint.
        revision: Commit of a hub checkpoint; `None` for a directory.

    Returns:
        The commit, or the first 16 hexadecimal digits of a SHA-256 over names and contents.
    """
    if revision is not None:
        return revision
    folder = Path(path).expanduser()
    files = {file for pattern in _FILES for file in folder.glob(pattern) if file.is_file()}
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]
