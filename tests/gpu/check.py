"""Compare the GPU with the CPU and measure latency at 7B: `make test-gpu`.

What counts most comes first. No part begins later than `BEGIN_UNTIL_S` after the start, so that the
run ends within six minutes; parts that are left out are failures. The exit code is 0 if all agree,
1 if something does not, and 2 without a GPU.
"""

from __future__ import annotations

import sys

import torch

from tests.gpu.command import do_parts, failures, options

BEGIN_UNTIL_S = 270.0


def main() -> int:
    """Run all checks."""
    run = options((__doc__ or "").split("\n")[0])
    # What takes seconds to import is not needed to say that there is no GPU.
    from tests.gpu.check_methods import (
        check_full_memory,
        check_methods,
        check_pruners,
    )
    from tests.gpu.check_models import check_replies, check_towers
    from tests.gpu.latency import measure_latency

    parts = (
        ("Methods", check_methods),
        ("Pruners", check_pruners),
        ("Latency at 7B", measure_latency),
        ("Towers", check_towers),
        ("Replies", check_replies),
        ("Full memory", check_full_memory),
    )
    # What is compared is the arithmetic of float32, which TF32 is not.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    do_parts(run, "check", parts, BEGIN_UNTIL_S)
    wrong = failures(run)
    checked = sum(map(len, run.parts.values()))
    print(f"\n{checked} compared in {run.elapsed_s:.0f} s, {len(wrong)} do not agree", flush=True)
    for row in wrong:
        print(row)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
