"""What pruners inside the language model may cost per call, by the simulated device."""

import pytest
import torch
from device_cases import prune_layer_by_layer, pruner_cases
from simulated_device import SimulatedDevice, describe

from tango_core.compressors.contract.inputs import PROMPTS, SyntheticPrompt

CASES = pruner_cases()
# Reads of one call; none where all sizes follow from the settings. SparseVLM's number of raters
# and how many tokens FrameFusion merges follow from the prompt; the release's order of pivots is
# that of a Python set.
MOST_READS = {
    "sparsevlm": 1,
    "framefusion": 1,
    "framefusion that merges long": 1,
    "dart in the order of the release": 1,
}
MOST_LAUNCHES = 180
LONG = {
    "moving": SyntheticPrompt(grid=(8, 6, 6)),
    "still": SyntheticPrompt(grid=(8, 6, 6), change=0.3, newlines="rows"),
}
ODD = ("one-token", "one-newline", "one-text-token", "static")
PROMPT_CASES = LONG | {name: SyntheticPrompt(**PROMPTS[name]) for name in ODD}


@pytest.mark.parametrize("name", CASES)
def test_every_call_stays_in_the_budget(name):
    reads = set()
    # FrameFusion is called at every layer.
    prompts = LONG if name.startswith("framefusion") else PROMPT_CASES
    for which, prompt in prompts.items():
        expected = prune_layer_by_layer(CASES[name], prompt)
        with SimulatedDevice() as device:
            for context, pruned in prune_layer_by_layer(CASES[name], prompt, device):
                where = f"{which}, layer {context.layer}"
                assert device.reads <= MOST_READS.get(name, 0), (
                    f"{where}\n{describe(device.where('read').items())}"
                )
                reads.add(device.reads)
                assert device.uploads <= (1 if "release" in name else 0), where
                assert device.launches <= MOST_LAUNCHES, where
                assert not device.varying, describe(device.where("varying").items())
                _, wanted = next(expected)
                assert torch.equal(pruned.keep.held, wanted.keep), where
                torch.testing.assert_close(pruned.hidden.held, wanted.hidden)
    assert max(reads) == MOST_READS.get(name, 0)  # or the bound would be too generous


def test_framefusion_reads_at_every_layer_that_merges_and_never_again():
    reads = []
    with SimulatedDevice() as device:
        pruner = CASES["framefusion that merges long"]
        for _ in prune_layer_by_layer(pruner, LONG["still"], device):
            reads.append(device.reads)
    assert reads == sorted(reads, reverse=True)
    assert reads[0] == 1
    assert reads[-1] == 0
