"""Compressors in a fresh Python, which knows nothing of this one but where modules lie."""

from __future__ import annotations

import pickle
import subprocess
import sys

import torch

from tango_core.compressors.base import Compressor
from tango_core.compressors.contract.errors import ContractError
from tango_core.types import CompressedVideo, VisualFeatures

_SCRIPT = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
import torch
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(12345)
pairs = pickle.load(sys.stdin.buffer)
results = [compressor.compress(features) for compressor, features in pairs]
sys.stdout.buffer.write(pickle.dumps(results))
"""


def compressed_in_another_process(
    pairs: list[tuple[Compressor, VisualFeatures]],
) -> list[CompressedVideo]:
    """Results of compressors on clips, from one fresh Python."""
    done = subprocess.run(
        # As many threads as here: sums are split among them.
        [sys.executable, "-c", _SCRIPT, str(torch.get_num_threads())],
        input=pickle.dumps(sys.path) + pickle.dumps(pairs),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ContractError(f"another process fails: {''.join(last)}")
    results: list[CompressedVideo] = pickle.loads(done.stdout)
    return results
