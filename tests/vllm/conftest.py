"""Tests of the engine `vllm` against `native`; `make test-vllm` runs them, beside vLLM alone."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import torch

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # vLLM compiles log-probabilities when they are first used
torch.set_num_threads(1)

SITE = str(Path(__file__).parent / "site")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SITE, os.getenv("PYTHONPATH")]))
sys.path.insert(0, SITE)
importlib.import_module("sitecustomize")
