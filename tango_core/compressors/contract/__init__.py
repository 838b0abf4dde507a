"""The contract of pruning methods, as checks that need no test runner.

    from tango_core.compressors.contract import check_method

    for result in check_method("my_package.my_module:MyMethod"):
        print(result.promise, result.failure or "ok")

`compressor_checks.py` and `pruner_checks.py` hold one function per promise, which raises
`ContractError`; `inputs.py` makes their inputs. The tests of this project and `tango
check-method` call the same functions. A new promise is a function in one of the two files and a
line here.

May import: `tango_core.compressors` and what that imports; torch and numpy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from tango_core.compressors import build_method, method_class
from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.contract import compressor_checks as before
from tango_core.compressors.contract import pruner_checks as inside
from tango_core.compressors.contract.inputs import (
    CLIPS,
    PROMPTS,
    ContractError,
    SyntheticPrompt,
    make_clip,
    require,
)
from tango_core.compressors.options import option_names

__all__ = ["CheckResult", "ContractError", "check_method", "check_pruner"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
RETENTIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0)
WRONG_RETENTIONS = (0.0, -0.1, 1.01, float("nan"))
# Retentions of a quick run.
FEW_RETENTIONS = (0.05, 0.25, 1.0)
FEW_CLIPS = ("eight-frames", "not-square", "duplicates")
FEW_PROMPTS = ("plain", "newline-per-row", "text-before-every-frame")

# One case of a check: its name, and a function that raises if the promise is broken.
Case = tuple[str, Callable[[], None]]
Checks = Iterator[tuple[str, Iterable[Case]]]


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        promise: Description of the checked promise.
        failure: One-line reason of a failure; `None` if the check passed.
    """

    promise: str
    failure: str | None


def check_method(
    name: str, options: Mapping[str, Any] | None = None, *, quick: bool = False
) -> Iterator[CheckResult]:
    """Check the promises of a method on seeded synthetic features.

    Args:
        name: As in `build_method`.
        options: Options to build the method with. If they include `retention`, only that value is
            checked, otherwise several values, skipping those that the method cannot reach.
        quick: Use three retentions and three clips or prompts, and start no other process.

    Raises:
        ValueError: At once, if the method does not exist or cannot be built with the options.
    """
    given = dict(options or {})
    asked = given.pop("retention", None)
    takes_retention = "retention" in option_names(method_class(name))

    def build(retention: float) -> Any:
        chosen: dict[str, Any] = {"retention": retention} if takes_retention else {}
        return build_method(name, **given, **chosen)

    def can_be_reached(retention: float) -> bool:
        try:
            build(retention)
        except ValueError as error:
            if "cannot be reached" not in str(error):
                raise
            return False
        return True

    if asked is None and takes_retention:
        wanted = FEW_RETENTIONS if quick else RETENTIONS
        retentions = list(filter(can_be_reached, wanted))
        if not retentions:
            build(max(wanted))  # raises the reason
    else:
        # Without an option `retention`, the other options determine the share kept.
        retentions = [build(1.0).compressor.outer_retention if asked is None else asked]
        build(retentions[0])
    wrong = ("refuses a retention outside (0, 1]", _refuses_wrong_retentions(build))
    if issubclass(method_class(name), Compressor):
        checks = _compressor_cases(lambda one: build(one).compressor, retentions, quick=quick)
    else:
        checks = _pruner_cases(lambda one: build(one).pruner, retentions, quick=quick)
    return _run([*checks, wrong] if takes_retention else checks)


def check_pruner(
    build: Callable[[float], LayerPruner], *, quick: bool = False
) -> Iterator[CheckResult]:
    """Check the step inside the language model of a hybrid method.

    Args:
        build: Retention -> pruner.
        quick: As in `check_method`.
    """
    return _run(
        _pruner_cases(build, FEW_RETENTIONS if quick else RETENTIONS, is_step=True, quick=quick)
    )


def _run(checks: Iterable[tuple[str, Iterable[Case]]]) -> Iterator[CheckResult]:
    """Run every check until its first failing case."""
    for promise, cases in checks:
        yield CheckResult(promise, next(filter(None, map(_failure_of, cases)), None))


def _failure_of(case: Case) -> str | None:
    """Reason for the failure of a case; any exception is a failure."""
    name, check = case
    try:
        check()
    except ContractError as error:
        return f"{name}: {error}"
    except Exception as error:
        return f"{name}: {type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _refuses_wrong_retentions(build: Callable[[float], Any]) -> list[Case]:
    """Cases: a retention outside (0, 1] raises a `ValueError` that names the option."""

    def check(retention: float) -> None:
        message = "no error"
        try:
            build(retention)
        except ValueError as error:
            message = str(error)
        require("retention" in message, f"{message}; call super().__post_init__()")

    return [(f"retention {one}", partial(check, one)) for one in WRONG_RETENTIONS]


def _near(retentions: Sequence[float], *wanted: float) -> list[float]:
    """The reachable retentions nearest to the wanted ones."""
    near = (min(retentions, key=lambda one: abs(one - want)) for want in wanted)
    return list(dict.fromkeys(near))


def _cases(
    make_input: Callable[..., Any],
    inputs: Mapping[str, Mapping[str, Any]],
    build: Callable[[float], Any],
    check: Callable[[Any, Any], None],
    retentions: Iterable[float],
    names: Iterable[str] | None = None,
    dtypes: Iterable[torch.dtype] = DTYPES[:1],
    **shape: Any,
) -> Iterator[Case]:
    """Cases of a check for every named input, dtype and retention.

    Args:
        make_input: Makes a clip or a prompt.
        inputs: Name -> arguments of `make_input`.
        build: Retention -> compressor or pruner.
        check: Function that raises if the promise is broken.
        retentions: Retentions to check.
        names: Names of inputs to use; `None` for all.
        dtypes: Data types of the input.
        **shape: Arguments of `make_input` that replace those in `inputs`.
    """
    noun = "clip" if make_input is make_clip else "prompt"
    for name, dtype, retention in product(names or inputs, dtypes, retentions):
        value = make_input(**{**inputs.get(name, {}), "dtype": dtype, **shape})
        case = f"{noun} {name}, {str(dtype).removeprefix('torch.')}, retention {retention:g}"
        yield case, partial(check, partial(build, retention), value)


def _compressor_cases(
    build: Callable[[float], Compressor], every: Sequence[float], *, quick: bool
) -> Checks:
    """Promise -> cases, for a method that runs before the language model."""
    clips = {name: CLIPS[name] for name in (FEW_CLIPS if quick else CLIPS)}
    on = partial(_cases, make_clip, clips, build)
    some, one = _near(every, 0.05, 0.5, 1.0), _near(every, 0.25)
    below_one = [retention for retention in every if retention < 1]
    plain = ("eight-frames",)
    if not quick:
        yield "one frame", on(before.returns_a_valid_video, every, ["one-frame"])
        yield "identical frames", on(before.returns_a_valid_video, every, ["static"])
    yield "indices ascend, are unique and in range", on(before.returns_a_valid_video, every)
    yield "keeps no more than the promised share", on(before.keeps_no_more_than_promised, every)
    yield (
        "keeps no less than the promised share where nothing repeats",
        on(before.keeps_no_less_than_promised, every, ["noise"], kind="noise", grid=(8, 8)),
    )
    if 1.0 in every:
        yield "keeps all at retention 1", on(before.retention_one_keeps_all, [1.0])
    yield "same input, same output", on(before.same_input_gives_the_same_bytes, one)
    yield "does not change its input", on(before.does_not_change_its_input, some)
    yield "keeps dtype and device", on(before.keeps_dtype_and_device, some, dtypes=DTYPES)
    yield (
        "makes its tokens by its plan, also by a stored one",
        on(before.makes_its_tokens_by_its_plan, some, dtypes=DTYPES),
    )
    yield "plans validly", on(before.plans_validly, below_one)
    yield "companions follow the tokens", on(before.companions_follow_the_tokens, one)
    yield "passes on what is known of the file", on(before.passes_on_the_source, some, plain)
    yield "ignores the memory layout", on(before.ignores_the_memory_layout, one, ["not-square"])
    yield "refuses NaN and infinity", on(before.refuses_values_that_are_not_finite, one, plain)
    yield "names a missing signal", on(before.names_a_missing_signal, one, plain)
    yield "reads only the signals in needs", on(before.reads_only_what_it_needs, one)
    yield "can be pickled", on(before.is_pickled_whole, one, plain)
    if not quick:
        same = before.is_the_same_in_another_process
        yield "same output in another process", on(same, one, plain)
    if len(below_one) > 1:
        first, second = (build(retention) for retention in below_one[:2])
        whole = build(1.0) if 1.0 in every else None
        check = partial(before.identity_tells_retentions_apart, first, second, whole)
        yield "has an identity for the cache", [("identity", check)]


def _pruner_cases(
    build: Callable[[float], LayerPruner],
    every: Sequence[float],
    *,
    is_step: bool = False,
    quick: bool,
) -> Checks:
    """Promise -> cases, for a method that runs inside the language model, or a step of a hybrid."""
    prompts = {name: PROMPTS[name] for name in (FEW_PROMPTS if quick else PROMPTS)}
    on = partial(_cases, SyntheticPrompt, prompts, build)
    some = _near(every, 0.25)
    if not quick:
        yield "one frame", on(inside.prunes_validly, every, ["one-frame", "one-token"])
        yield "identical frames", on(inside.prunes_validly, every, ["static"])
    yield (
        "text stays, positions ascend, the input is not changed, dtype stays",
        on(inside.prunes_validly, every, dtypes=DTYPES),
    )
    if 1.0 in every:
        yield "keeps all at retention 1", on(inside.retention_one_keeps_all, [1.0])
    yield "same input, same output", on(inside.same_input_gives_the_same_bytes, some)
    yield (
        "returns states of its own",
        on(inside.returns_states_of_its_own, _near(every, 0.25, 1.0)),
    )
    yield "can be pickled", on(inside.is_pickled_whole, some, ["plain"])
    if is_step:
        return
    yield (
        "layer_shares average to the retention",
        [
            (
                f"retention {one:g}",
                partial(inside.layer_shares_average_to_the_retention, partial(build, one)),
            )
            for one in every
        ],
    )
    large: dict[str, Any] = {"grid": (8, 8, 8), "dim": 8}
    yield (
        "keeps the promised share",
        on(inside.counts_average_to_the_retention, every, ["plain"], **large),
    )
