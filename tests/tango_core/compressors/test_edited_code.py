"""Methods whose source files are saved while a process runs: no digest stands for other code."""

import importlib
import sys

import pytest
from methods_as_files import FIRST, forget

from tango_core.compressors import build_method


def test_the_digest_is_that_of_the_code_that_was_imported(write):
    write("kept_module.py", FIRST)
    before = build_method("kept_module:First", retention=0.5).compressor.identity()
    write("kept_module.py", FIRST + "# edited after the import\n")
    assert build_method("kept_module:First", retention=0.5).compressor.identity() == before


def test_an_edit_between_import_and_first_use_is_not_taken_for_what_runs(write):
    def digest():
        return build_method("late_module:First", retention=0.5).compressor.identity()

    write("late_module.py", FIRST)
    before = digest()
    forget("late_module")
    importlib.import_module("late_module")
    write("late_module.py", FIRST.replace("total,", "total - 1,"))
    assert digest() == before, "of the code that was imported"
    forget("late_module")
    assert digest() != before


@pytest.mark.parametrize(
    ("was", "edited"),
    [
        ("def step(value):\n    return value\n", "def step(value):\n    return value + 1\n"),
        ("STEP = 1\n", "STEP = 2\n"),
        ("class Step:\n    def of(self):\n        return 1\n", "class Step:\n    pass\n"),
    ],
)
def test_a_helper_that_was_edited_since_its_import_is_refused_in_one_line(
    write, tmp_path, monkeypatch, was, edited
):
    monkeypatch.syspath_prepend(str(tmp_path))
    write("early_helper.py", was)
    importlib.import_module("early_helper")
    write("early_module.py", "import early_helper\n" + FIRST)
    build_method("early_module:First", retention=0.5).compressor.identity()
    forget("early_module")
    write("early_helper.py", edited)
    with pytest.raises(ValueError, match="has changed on disk since it was imported") as caught:
        build_method("early_module:First", retention=0.5)
    assert "early_helper.py" in str(caught.value)
    assert "restart the process" in str(caught.value)
    forget("early_helper", "early_module")
    build_method("early_module:First", retention=0.5).compressor.identity()


def test_a_module_that_is_imported_after_it_was_edited_is_refused(write):
    lazy = "\ndef later():\n    import lazy_helper\n"
    write("lazy_helper.py", "VALUE = 1\n")
    write("lazy_module.py", FIRST + lazy)
    compressor = build_method("lazy_module:First", retention=0.5).compressor
    compressor.identity()
    write("lazy_helper.py", "VALUE = 22\n")
    compressor.identity()  # it does not run
    sys.modules["lazy_module"].later()
    with pytest.raises(ValueError, match=r"lazy_helper\.py has changed on disk"):
        compressor.identity()
