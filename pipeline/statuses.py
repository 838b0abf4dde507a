"""Statuses of clips and answers, and which of them are failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.rows import Result

DECODE_FAILED, ENCODE_FAILED, ANSWER_FAILED = "decode_failed", "encode_failed", "answer_failed"
"""Failure statuses of the stages."""

DAMAGED = "decode_damaged"
"""Status of a clip in a damaged part of a stream, and of its answers. It is a failure unless the
clip was answered anyway (`decode.damaged: keep`)."""

FAILED = (DECODE_FAILED, ENCODE_FAILED, ANSWER_FAILED, DAMAGED)
"""All failure statuses."""


def is_failed(answer: Mapping[str, Any]) -> bool:
    """Whether an answer (`rows.ANSWER`) failed; for a damaged clip, whether it was not asked."""
    if answer["status"] == DAMAGED:
        prompt_tokens = answer.get("prompt_tokens")
        return prompt_tokens is None or not prompt_tokens > 0  # also true for NaN (missing)
    return answer["status"] in FAILED


def are_failed(answers: pa.Table, *, keep_damaged: bool = True) -> npt.NDArray[np.bool_]:
    """Apply `is_failed` to every row of a table of answers.

    Args:
        answers: Rows of `rows.ANSWER`.
        keep_damaged: `False` to count all answers about damaged clips as failed
            (`decode.damaged: fail`), even if an earlier attempt answered them.
    """
    status = answers["status"]
    failed = pc.is_in(status, pa.array(FAILED, status.type))
    if keep_damaged and "prompt_tokens" in answers.column_names:
        answered = pc.fill_null(pc.greater(answers["prompt_tokens"].cast(pa.float64()), 0), False)
        failed = pc.and_not(failed, pc.and_(pc.equal(status, DAMAGED), answered))
    return np.asarray(failed.to_numpy(), dtype=bool)


def has_failed(result: Result) -> bool:
    """Whether anything about a clip failed: the clip itself, or an answer."""
    return result.status != "ok" or any(map(is_failed, result.answers))
