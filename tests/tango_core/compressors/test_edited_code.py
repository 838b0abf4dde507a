"""Methods whose source files are saved while a process runs: no digest stands for other code."""

import importlib

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
