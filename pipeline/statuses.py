"""Statuses of clips and answers: which of them are failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.rows import Result

DECODE_FAILED, ENCODE_FAILED, ANSWER_FAILED = "decode_failed", "encode_failed", "answer_failed"
"""Statuses of rows that a stage failed on."""

DAMAGED = "decode_damaged"
"""Status of what concerns a clip whose stream is damaged where the clip is: a failure, unless the
clip was answered all the same (`decode.damaged: keep`)."""

FAILED = (DECODE_FAILED, ENCODE_FAILED, ANSWER_FAILED, DAMAGED)
"""The statuses of rows that a stage failed on."""


def is_failed(answer: Mapping[str, Any]) -> bool:
    """Whether an answer (`rows.ANSWER`) failed; one about a damaged clip did if it was not put."""
    if answer["status"] == DAMAGED:
        prompt_tokens = answer.get("prompt_tokens")
        return prompt_tokens is None or not prompt_tokens > 0  # a table writes a missing one as NaN
    return answer["status"] in FAILED


def are_failed(answers: pa.Table, *, keep_damaged: bool = True) -> npt.NDArray[np.bool_]:
    """`is_failed` of every row of a table of answers.

    Args:
        answers: Rows of `rows.ANSWER`.
        keep_damaged: `False` for a job that fails damaged clips (`decode.damaged`), whatever an
            earlier attempt answered about them.
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
