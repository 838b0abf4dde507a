"""What methods before the model may cost on an accelerator, by the simulated device."""

import pytest
import torch
from device_cases import RETENTION, compressor_cases, scenes_of
from rounding import assert_equal_but_for_rounding
from simulated_device import SimulatedDevice, describe

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import CLIPS, make_clip

CASES = list(compressor_cases())
NAMES = [f"{name} {options}" for name, options in CASES]
# What the host reads: what it plans by, and whether the kept positions are in order.
MOST_READS = 2
# One more for the number of tokens of every frame, or for the cosines that SemVID selects by; AOT
# reads what every frame keeps, and whether a transport has converged; CDPruner over a whole clip
# reads five times for every 96 tokens that it chooses, and for every few of a frozen clip.
MORE_READS = {"cdpruner": 3, "cdpruner clip": 100, "rediprune": 3, "semvid": 3, "aot": 300}
# A plan of whole numbers, times, weights; one for each of few batches in exact budgets.
MOST_UPLOADS = 10
# Operators for a clip of 32 frames of 6 x 6 tokens. DivPrune and FlashVID choose one token after
# another, EVS and AOT go frame by frame, CDPruner and ReDiPrune choose one token of every frame
# at a time; FastVID, HoliTom and PruneVID cluster segment by segment, up to 32 of them.
MOST_LAUNCHES = {
    "tango": 350,
    "visionzip": 110,
    "vidcom2": 130,
    "vcast": 60,
    "divprune": 1000,
    "evs": 300,
    "flashvid": 700,
    "fastvid": 1700,
    "holitom": 1600,
    "prunevid": 1500,
    "cdpruner": 300,
    "cdpruner clip": 34000,
    "rediprune": 600,
    "semvid": 60,
    "aot": 3000,
}
MOST_OF_OTHERS = 40
LONG_CLIPS = {
    "many scenes": scenes_of(16),
    "noise": make_clip(32, (6, 6), "noise"),
    "frozen": make_clip(32, (6, 6), "static"),
}
ODD_CLIPS = ("one-frame", "not-square", "one-token-per-frame", "duplicates")


def _run(name, options, features):
    """The clip compressed on the CPU and on the simulated device, and what that cost."""
    compressor = build_method(name, **options).compressor
    expected = compressor.compress(features)
    with SimulatedDevice() as device:
        video = compressor.compress(device.move(features))
    return expected, video, device


def _assert_same_tokens(video, expected, clip):
    """Nearly all positions are common to both; tokens are equal where all are.

    The two sum products in another order. Where two distances differ by less than float32 resolves,
    the last bit decides which token is kept, and it depends on the processor; in a clip of equal
    frames one such tie recurs in every frame.
    """
    if torch.equal(video.indices.held, expected.indices):
        # A merged token is a sum over at most all tokens of the clip.
        assert_equal_but_for_rounding(video.tokens.held, expected.tokens, expected.num_total)
    assert video.num_kept == expected.num_kept, clip
    common = set(video.indices.held.tolist()) & set(expected.indices.tolist())
    assert len(common) >= 0.9 * expected.num_kept, clip


def _kind(name, options):
    """The name in the tables of budgets."""
    return f"{name} clip" if options.get("variant") == "clip" else name


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_long_clips_stay_in_the_budget(name, options):
    kind = _kind(name, options)
    for clip, features in LONG_CLIPS.items():
        expected, video, device = _run(name, options, features)
        _assert_same_tokens(video, expected, clip)
        assert device.reads <= MORE_READS.get(kind, MOST_READS), describe(
            device.where("read").items()
        )
        assert device.uploads <= MOST_UPLOADS, describe(device.where("upload").items())
        most = MOST_LAUNCHES.get(kind, MOST_OF_OTHERS)
        assert device.launches <= most, describe(device.where("launch").most_common(20))
        assert not device.varying, describe(device.where("varying").items())


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_odd_clips_run_on_one_device_and_read_twice(name, options):
    kind = _kind(name, options)
    for clip in ODD_CLIPS:
        expected, video, device = _run(name, options, make_clip(**CLIPS[clip]))
        assert video.num_kept == expected.num_kept, clip
        assert device.reads <= MORE_READS.get(kind, MOST_READS), describe(
            device.where("read").items()
        )
        assert not device.varying, describe(device.where("varying").items())


@pytest.mark.parametrize("budget", ["official", "exact"])
def test_tango_costs_the_same_however_many_segments_there_are(budget):
    costs, segments = set(), []
    for num_scenes in (4, 8, 16):
        features = scenes_of(num_scenes)
        tango = build_method("tango", retention=RETENTION, budget=budget, tau=0.3).compressor
        drawing = tango.plan(features).drawing
        segments.append(len(drawing.segments))
        assert drawing.static.any()
        with SimulatedDevice() as device:
            tango.compress(device.move(features))
        costs.add((device.launches, device.uploads, device.reads))
    assert segments == [4, 8, 16]
    assert len(costs) == 1, costs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_the_same(dtype):
    for name in ("tango", "divprune", "holitom", "flashvid"):
        features = make_clip(8, (6, 6), dtype=dtype)
        expected, video, device = _run(name, {"retention": RETENTION}, features)
        _assert_same_tokens(video, expected, name)
        assert video.tokens.dtype == dtype
        assert device.reads <= MOST_READS
