"""Names of token caches: those of shipped methods never change, those of others follow the code."""

import pytest

from pipeline.cache.directory import TokenCache, open_cache
from tango_core.compressors import METHODS, build_method
from tango_core.compressors.options import option_names
from tango_core.models import describe_model

# A fixed description, since that of a real model names the installed decoders.
MODEL = {"name": "a-model", "frames": {"num_frames": 8}}
# As first released: other names would leave every existing cache unused.
CACHE_NAMES = {
    "full": "tiny-8f-full-68da1ac7e80b",
    "random": "tiny-8f-random-r0.1-d943c051aa43",
    "uniform": "tiny-8f-uniform-r0.1-a69aa2ff94ce",
    "topk": "tiny-8f-topk-r0.1-7020854e4821",
    "tango": "tiny-8f-tango-r0.1-e0ef93d97082",
    "cdpruner": "tiny-8f-cdpruner-r0.1-a7d472b4586f",
    "semvid": "tiny-8f-semvid-r0.1-7f34a28f3400",
    "rediprune": "tiny-8f-rediprune-r0.1-f5cf7147421c",
    "aot": "tiny-8f-aot-r0.1-07727e18ad70",
    "earlytom": "tiny-8f-earlytom-r0.1-cd78b3adea0d",
    "visionzip": "tiny-8f-visionzip-r0.1-e12234cff57c",
    "vidcom2": "tiny-8f-vidcom2-r0.1-cb608acc37ca",
    "fastvid": "tiny-8f-fastvid-r0.1-3eec32e2b33d",
    "holitom": "tiny-8f-holitom-r0.1-a75593154523",
    "divprune": "tiny-8f-divprune-r0.1-b6f93634dba9",
    "prunevid": "tiny-8f-prunevid-r0.1-e30283255fb1",
    "evs": "tiny-8f-evs-r0.1-a224776353ac",
    "flashvid": "tiny-8f-flashvid-r0.1-9143c53af035",
    "vcast": "tiny-8f-vcast-r0.1-b4420c1f109d",
    "fewer_frames": "tiny-8f-fewer_frames-r0.1-315fef3e8b24",
    "pool_space": "tiny-8f-pool_space-r0.1-a4ba27de9f4c",
    "pool_time": "tiny-8f-pool_time-r0.1-9a930350b0f1",
    "block": "tiny-8f-block-r0.25-e3a84f9536a9",
    "fastv": "tiny-8f-full-68da1ac7e80b",
    "dart": "tiny-8f-full-68da1ac7e80b",
    "pyramiddrop": "tiny-8f-full-68da1ac7e80b",
    "sparsevlm": "tiny-8f-full-68da1ac7e80b",
    "framefusion": "tiny-8f-full-68da1ac7e80b",
}
HYBRIDS = {
    ("tango", "fastv-merge"): "tiny-8f-tango-r0.1-1e247ea19d0d",
    ("holitom", "holitom-merge"): "tiny-8f-holitom-r0.1-7aa2061eeb2c",
    ("earlytom", "holitom-merge"): "tiny-8f-earlytom-r0.1-6e864c9e6f0e",
}


def cache_name(method, root):
    """Name of the folder, with the model's part of the hash replaced by a fixed one."""
    label = open_cache(str(root), describe_model("tiny"), method.compressor).name
    identity = {"model": MODEL, "compressor": method.compressor.identity()}
    return TokenCache(str(root), identity, label.rpartition("-")[0]).name


@pytest.mark.parametrize("name", METHODS)
def test_the_cache_of_a_shipped_method_keeps_its_name(name, tmp_path):
    options = {"retention": 0.1} if "retention" in option_names(METHODS[name]) else {}
    assert cache_name(build_method(name, **options), tmp_path) == CACHE_NAMES[name]


@pytest.mark.parametrize(("name", "inner"), HYBRIDS)
def test_the_cache_of_a_shipped_hybrid_keeps_its_name(name, inner, tmp_path):
    step = {"name": inner, "layer": 18, "retention": 0.5}
    method = build_method(name, retention=0.1, inner=step)
    assert cache_name(method, tmp_path) == HYBRIDS[name, inner]


@pytest.mark.parametrize("name", ["visionzip", "fastvid", "holitom"])
def test_options_that_came_later_name_a_cache_of_their_own_only_when_used(name, tmp_path):
    def named(**options):
        return cache_name(build_method(name, retention=0.1, **options), tmp_path)

    assert named(stop=None, budget="official") == CACHE_NAMES[name]
    used = [named(stop={}), named(stop={"legacy": True}), named(budget="exact")]
    assert len({CACHE_NAMES[name], *used}) == 4


def test_the_inner_step_acts_on_a_cache_through_the_share_before_it_alone(tmp_path):
    hybrid = build_method("flashvid", retention=0.1)
    alone = build_method("flashvid", retention=0.125, inner=None)
    assert hybrid.compressor.identity() == alone.compressor.identity()
