"""What of a recipe must not, or cannot, be written into the files of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jobs.config.errors import RecipeError
from pipeline.redaction import first_with_credentials
from tango_core.printable import is_printable


def raise_if_not_for_a_file(content: Mapping[str, Any], source: str) -> None:
    """Refuse what must not or cannot be written into the files of a run.

    Raises:
        RecipeError: For a password or signature in a URL, and for text that is not UTF-8.
    """
    key = first_with_credentials(content)
    if key is not None:
        raise RecipeError(
            f"{source}: {key} holds credentials, which every file of the run would repeat; take "
            "them out of the URL: object stores find them in the environment or in their own "
            "files (AWS_PROFILE, ~/.aws, GOOGLE_APPLICATION_CREDENTIALS), the hub in HF_TOKEN"
        )
    if not is_printable(json.dumps(content, ensure_ascii=False, default=str)):
        raise RecipeError(f"{source}: a path or name is not UTF-8 text; rename what it names")
