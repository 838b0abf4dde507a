"""What stands in a harness's file for a question that was never answered.

VLMEvalKit writes `FAILED_REPLY` and its rules read it as the answer A (Video-MME, LongVideoBench),
as right (MVBench) or as minus one point (MLVU). lmms-eval's models write an empty text, which
leaves MVBench's denominator, or a sentence with the video's path, whose letters are read. We write
the two texts below instead: no rule of the harness reads an option in them, so that the question is
wrong there as it is here.
"""

from __future__ import annotations

FAILED_REPLY = "Failed to obtain answer via API."

# "Z" is VLMEvalKit's own letter for a reply that names no option.
NO_REPLY = "Z (no reply was obtained)"
# The sentence of lmms-eval's `llava_vid`, without the path.
NOT_LOADED = "Video can not load, check the source"


def is_failure(reply: str) -> bool:
    """Whether a reply in a harness's file says that there was none; an empty reply does not."""
    return (
        FAILED_REPLY in reply
        or reply.strip() == NO_REPLY
        or (reply.startswith("Video ") and reply.endswith(NOT_LOADED.removeprefix("Video ")))
    )
