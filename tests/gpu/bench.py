"""Measure speed on one GPU: `make bench-gpu`, or `python -m tests.gpu.bench`.

The exit code is 0, 1 if something could not be measured, and 2 without a GPU. Times on a GPU are
between two of its events; the clock of the host only counts where the host is part of what is
measured (first token, questions a second).
"""

from __future__ import annotations

import sys

from tests.gpu.command import do_parts, failures, options


def main() -> int:
    """Run all parts."""
    run = options((__doc__ or "").split("\n")[0])
    # What takes seconds to import is not needed to say that there is no GPU.
    from tests.gpu.bench_answers import bench_batches, bench_prefix
    from tests.gpu.bench_compress import bench_compress
    from tests.gpu.bench_decoding import bench_decoding
    from tests.gpu.bench_ttft import bench_ttft

    parts = (
        ("Compress", bench_compress),
        ("Time to first token at 7B", bench_ttft),
        ("Decoding", bench_decoding),
        ("Prefix sharing", bench_prefix),
        ("Batches", bench_batches),
    )
    do_parts(run, "bench", parts)
    print(f"\nmeasured in {run.elapsed_s:.0f} s", flush=True)
    return int(bool(failures(run)))


if __name__ == "__main__":
    sys.exit(main())
