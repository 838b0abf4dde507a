"""What tests of methods have in common."""

import importlib
import sys

import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module that can be imported from the working directory, and forgets it later."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    # What is written twice in a second, in one size, would be imported as it was compiled before.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
