"""EVS and VidCom2 against the functions of vLLM itself, on both rows that it scores."""

import importlib
from dataclasses import replace

import pytest
import torch

from tango_core.compressors import build_method
from tango_core.compressors.base import scored_row
from tango_core.compressors.contract.inputs import make_clip

# Options that round budgets as vLLM does.
OPTIONS = {"evs": {"budget": "official"}, "vidcom2": {"budget": "vllm"}}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("row", ["main", "deepstack"])
@pytest.mark.parametrize("retention", [0.05, 0.25, 0.4, 0.9])
def test_same_positions_as_the_function_of_vllm(name, row, retention):
    # Not at the top: the engines of other tests set variables before vLLM is imported.
    module = importlib.import_module(f"vllm.multimodal.video_prune.{name}")
    for seed in range(5):
        features = make_clip(6, (4, 5), "scene", seed=seed)
        others = [make_clip(6, (4, 5), "noise", seed=seed + number).tokens for number in (1, 2, 3)]
        features = replace(features, companions=torch.stack(others, dim=2))
        method = build_method(name, retention=retention, row=row, **OPTIONS[name])
        mask = module.compute_retention_mask(
            scored_row(features, row).flatten(0, 1), (6, 8, 10), 2, 1 - retention
        )
        kept = method.compressor.compress(features).indices
        assert torch.equal(kept, torch.nonzero(mask.flatten())[:, 0])
