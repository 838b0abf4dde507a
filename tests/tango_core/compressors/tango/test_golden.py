"""Tango against vectors from the official release (tests/fixtures/golden/PROVENANCE.md)."""

import json

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from simulated_device import SimulatedDevice

from tango_core.compressors import build_method
from tango_core.types import VisualFeatures

GOLDEN = GOLDEN_DIR
FILES = sorted(path.name for path in GOLDEN.glob("tango_*.npz"))


def _cases():
    """(file, configuration) pairs whose result the release defines; the rest is counted below."""
    compared, tie_sensitive, identity = [], [], []
    for name in FILES:
        with np.load(GOLDEN / name) as data:
            configs = json.loads(str(data["meta"]))["configs"]
        for config, settings in configs.items():
            if config == "r100":
                identity.append((name, config))
            elif settings["tie_sensitive"]:
                tie_sensitive.append((name, config))
            else:
                compared.append((name, config))
    return compared, tie_sensitive, identity


COMPARED, TIE_SENSITIVE, IDENTITY = _cases()
# The compared configurations of a file, checked by one test.
CONFIGS = {name: [config for other, config in COMPARED if other == name] for name in FILES}
ONE_FILE = pytest.mark.parametrize("name", [name for name in FILES if CONFIGS[name]])


def _load(name, config):
    """Features and the option values of one configuration, with its expected results."""
    with np.load(GOLDEN / name) as data:
        meta = json.loads(str(data["meta"]))
        settings = meta["configs"][config]
        dtype = torch.bfloat16 if "bf16" in name else torch.float32
        tokens = torch.from_numpy(data["features"]).to(dtype)
        features = VisualFeatures(
            tokens=tokens,
            grid=tuple(data["grid"].tolist()),
            timestamps=torch.from_numpy(data["timestamps"]),
            saliency=torch.from_numpy(data["saliency"]),
            frame_embeddings=tokens.float().mean(dim=1),
            sinks=tuple(settings["sinks"]),
        )
        expected = {
            key.split("/")[1]: data[key] for key in data.files if key.startswith(f"{config}/")
        }
    options = {
        "retention": settings["r"],
        "tau": settings["tau"],
        "context_ratio": settings["context"],
        "alpha": settings["alpha"],
        "num_neighbors": settings["k"],
        "beta": settings["beta"],
        "base_time": settings["base_time"],
        "base_space": settings["base_space"],
        "segmentation": {"holitom": "static", "fastvid": "dyseg"}[settings["segment_type"]],
    }
    return features, options, expected


def _assert_close(ours, theirs, dtype, config):
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    theirs = torch.from_numpy(theirs)
    torch.testing.assert_close(
        ours.float(),
        theirs,
        rtol=tolerance,
        atol=tolerance * float(theirs.abs().max()),
        msg=lambda text: f"{config}: {text}",
    )


def test_the_number_of_compared_configurations_is_known(capsys):
    with capsys.disabled():
        print(
            f"\n{len(COMPARED)} official configurations compared, {len(TIE_SENSITIVE)} decided by "
            f"ties, {len(IDENTITY)} at retention 1 (identity here)"
        )
    assert (len(COMPARED), len(TIE_SENSITIVE), len(IDENTITY)) == (78, 17, 5)


@ONE_FILE
@pytest.mark.parametrize("legacy", [False, True])
def test_keeps_and_merges_the_tokens_of_the_release(name, legacy):
    """Merged tokens stay with their own anchors; `legacy_writeback` gives the release's vectors."""
    for config in CONFIGS[name]:
        features, options, expected = _load(name, config)
        method = build_method("tango", legacy_writeback=legacy, **options)
        ours = method.compressor.compress(features)
        assert ours.indices.tolist() == expected["kept"].tolist(), config
        tokens = expected["feat_official"].copy()
        if not legacy:
            tokens[expected["feat_corrected_rows"]] = expected["feat_corrected_vals"]
        _assert_close(ours.tokens, tokens, features.tokens.dtype, config)


@ONE_FILE
def test_the_code_for_accelerators_keeps_the_same_tokens(name):
    for config in CONFIGS[name]:
        features, options, expected = _load(name, config)
        with SimulatedDevice() as device:
            ours = build_method("tango", **options).compressor.compress(device.move(features))
        assert ours.indices.held.tolist() == expected["kept"].tolist(), config


def test_ties_do_not_change_how_many_tokens_are_kept_by_more_than_duplicates():
    for name, config in TIE_SENSITIVE:
        features, options, expected = _load(name, config)
        ours = build_method("tango", **options).compressor.compress(features)
        most = len(expected["kept"]) * 1.1
        assert len(expected["kept"]) <= ours.num_kept <= most, (name, config)
