"""The contract of pruning methods, as checks that need no test runner.

    from tango_core.compressors.contract import check_method

    for result in check_method("my_package.my_module:MyMethod"):
        print(result.promise, result.failure or "ok")

`checks.py` holds the promises, `inputs.py` makes the clips and prompts. The tests of this project
and `tango check-method` run the same checks.

May import: `tango_core.compressors` and what that imports; torch and numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tango_core.compressors import build_method, method_class
from tango_core.compressors.base import Compressor
from tango_core.compressors.contract.checks import (
    CheckResult,
    Report,
    check_compressor,
    check_identity,
    check_pruner_cases,
    check_wrong_retentions,
)
from tango_core.compressors.contract.inputs import ContractError
from tango_core.compressors.options import option_names

__all__ = ["CheckResult", "ContractError", "check_method"]

RETENTIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0)
# Retentions of a quick run.
FEW_RETENTIONS = (0.05, 0.25, 1.0)


def check_method(
    name: str, options: Mapping[str, Any] | None = None, *, quick: bool = False
) -> list[CheckResult]:
    """Check the promises of a method on seeded synthetic features.

    Args:
        name: As in `build_method`.
        options: Options to build the method with. If they include `retention`, only that value is
            checked, otherwise several values, skipping those that the method cannot reach.
        quick: Use three retentions and three clips or prompts, and start no other process.

    Raises:
        ValueError: If the method does not exist or cannot be built with the options.
    """
    given = dict(options or {})
    asked = given.pop("retention", None)
    takes_retention = "retention" in option_names(method_class(name))
    is_compressor = issubclass(method_class(name), Compressor)

    def build(retention: float) -> Any:
        chosen: dict[str, Any] = {"retention": retention} if takes_retention else {}
        method = build_method(name, **given, **chosen)
        return method.compressor if is_compressor else method.pruner

    if asked is not None or not takes_retention:
        # Without an option `retention`, the other options determine the share kept.
        retentions = [build(1.0).outer_retention if asked is None else asked]
        build(retentions[0])
    else:
        wanted = FEW_RETENTIONS if quick else RETENTIONS
        retentions = []
        for one in wanted:
            try:
                build(one)
                retentions.append(one)
            except ValueError as error:
                if "cannot be reached" not in str(error):
                    raise
        if not retentions:
            build(max(wanted))  # raises the reason
    report = Report()
    if is_compressor:
        check_compressor(report, build, retentions, quick=quick)
        check_identity(report, build, retentions)
    else:
        check_pruner_cases(report, build, retentions, quick=quick, is_step=False)
    if takes_retention:
        check_wrong_retentions(report, build)
    return report.results()
