"""The contract of pruning methods: what each promises, and checks of it that need no test runner.

    from tango_core.compressors.contract import check_method

    for result in check_method("my_package.my_module:MyMethod"):
        print(result.promise, result.failure or "ok")

What lives here: `compressor_checks.py` and `pruner_checks.py` hold one function per promise, which
raises `ContractError`; `clips.py` and `prompts.py` make their inputs; `runner.py` runs all of it on
one method, some of it in a fresh Python (`another_process.py`). The tests of this project and
`tango check-method` call the same functions.

May import: `tango_core.compressors` and what that imports; torch and numpy alone.

A new promise is a function in one of the two files and a line in `runner.py`.
"""

from tango_core.compressors.contract.errors import ContractError
from tango_core.compressors.contract.runner import CheckResult, check_method

__all__ = ["CheckResult", "ContractError", "check_method"]
