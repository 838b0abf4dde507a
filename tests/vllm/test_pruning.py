"""EVS and VidCom2 against the functions of vLLM itself, on both rows that it scores."""

from dataclasses import replace

import pytest
import torch
from vllm.multimodal.video_prune import evs, vidcom2

from tango_core.compressors import build_method
from tango_core.compressors.base import scored_row
from tango_core.compressors.contract.inputs import make_clip

# vLLM's function, and the option that rounds budgets as it does.
FUNCTIONS = {"evs": (evs, {"budget": "official"}), "vidcom2": (vidcom2, {"budget": "vllm"})}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("row", ["main", "deepstack"])
@pytest.mark.parametrize("retention", [0.05, 0.25, 0.4, 0.9])
def test_same_positions_as_the_function_of_vllm(name, row, retention):
    module, options = FUNCTIONS[name]
    for seed in range(5):
        features = make_clip(6, (4, 5), "scene", seed=seed)
        others = [make_clip(6, (4, 5), "noise", seed=seed + number).tokens for number in (1, 2, 3)]
        features = replace(features, companions=torch.stack(others, dim=2))
        method = build_method(name, retention=retention, row=row, **options)
        mask = module.compute_retention_mask(
            scored_row(features, row).flatten(0, 1), (6, 8, 10), 2, 1 - retention
        )
        kept = method.compressor.compress(features).indices
        assert torch.equal(kept, torch.nonzero(mask.flatten())[:, 0])
