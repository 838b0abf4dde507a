"""The package and the plain transcriptions are two implementations of one text: they must agree."""

import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Pruned
from tango_core.compressors.contract.inputs import SyntheticPrompt, make_clip, pruned_layers
from tango_core.compressors.hybrid import INNER
from tango_core.compressors.tango.method import Tango

sys.path.insert(0, str(Path(__file__).parent))
import reference_tango
from cases import build_pruner
from references import COMPRESSORS, PRUNERS

# Compared with vectors of their releases' code instead (tests/fixtures/golden3).
WITH_VECTORS = {"aot", "cdpruner", "earlytom", "rediprune", "semvid"}


def test_every_method_has_a_reference():
    assert {*COMPRESSORS, *PRUNERS, "tango", *WITH_VECTORS} == {*METHODS, *INNER}


def agree(case, ours, kept, tokens):
    """The same positions, and the same tokens up to rounding."""
    assert ours.indices.tolist() == kept.tolist(), case
    torch.testing.assert_close(
        ours.tokens, tokens, rtol=1e-5, atol=1e-5, msg=lambda m: f"{case}: {m}"
    )


@pytest.mark.parametrize("retention", [0.08, 0.2, 0.45])
def test_tango_keeps_the_same_tokens(retention):
    shapes = [(1, (6, 6)), (5, (4, 7)), (9, (6, 6))]
    for case in product(shapes, ["scene", "noise", "static"], range(3)):
        features = make_clip(*case[0], case[1], seed=case[2], dim=48)
        tango = Tango(retention)
        kept, tokens = reference_tango.compress(features, retention, tango.resolved_tau)
        agree(case, tango.compress(features), kept, tokens)


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_other_methods_keep_the_same_tokens(name):
    clips = product([(8, (6, 6)), (12, (4, 10))], ["scene", "noise"], range(3), [0.15, 0.3, 0.45])
    for case in clips:
        retention = case[3]
        options = {} if name in ("full", "block") else {"retention": retention}
        features = make_clip(*case[0], case[1], seed=case[2], dim=48)
        ours = build_method(name, **options).compressor.compress(features)
        agree(case, ours, *COMPRESSORS[name](features, retention))


@pytest.mark.parametrize("name", sorted(PRUNERS))
def test_pruners_keep_the_same_tokens(name):
    for case in product(range(3), [0.3, 1.0, 2.0], [0.2, 0.5]):
        ours, theirs = pruned_twice(name, *case)
        assert ours.keep.tolist() == theirs.keep.tolist(), case
        torch.testing.assert_close(ours.hidden, theirs.hidden, rtol=1e-5, atol=1e-5)


def pruned_twice(name, seed, change, retention):
    """The last layer's results of the package and of the transcription."""
    pruner, layers, share = build_pruner(name, retention)
    prompt = SyntheticPrompt((8, 5, 6), right=9, change=change, seed=seed, dim=48)
    for prune in (pruner.prune, lambda context: Pruned(*PRUNERS[name](context, share))):
        chosen = SimpleNamespace(layers=lambda num_layers: layers, prune=prune)
        *_, (_, result) = pruned_layers(chosen, 28, prompt)
        yield result
