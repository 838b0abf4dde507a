"""Features that another process replaced while they were open: nothing good is removed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from stored_features import add_plan, clip, features, filled, token_cache

from pipeline.cache import compact
from pipeline.cache.checks import check_clips
from pipeline.cache.compact import compact_cache
from pipeline.cache.contents import UNKNOWN
from pipeline.cache.folders import find_caches
from pipeline.cache.index import INDEX
from pipeline.cache.names import SIGNALS
from pipeline.cache.plans import OutdatedPlanError
from pipeline.cache.quantised import restore, rounded
from pipeline.cache.rows import Entry
from pipeline.seal import read_sealed, write_sealed
from tango_core import build_method

KEY = clip().key


def test_features_that_another_process_put_in_place_are_read_and_stay(tmp_path):
    mine = filled(tmp_path)
    mine.opened(KEY)
    filled(tmp_path, ()).write(clip(), features(5), SIGNALS, (7.0, 8.0))
    found = mine.using(KEY, lambda opened: opened.features(frozenset()).tokens)
    assert torch.equal(found, features(5).tokens)
    assert KEY in mine.parts()["tokens"]


def test_a_plan_for_replaced_features_is_read_by_whoever_has_the_older_ones_open(tmp_path):
    filled(tmp_path)
    cache = token_cache(tmp_path)
    uniform = build_method("uniform", retention=0.25).compressor
    add_plan(cache, uniform)
    cache.read(KEY)  # holds the features open from now on
    filled(tmp_path, ()).write(clip(), features(5), (), (1.0, 2.0))
    entry = cache.read_as_stored(KEY).entry
    digest = filled(tmp_path, ()).layout(KEY).digest
    token_cache(tmp_path).write_plan(clip(), replace(entry, tokens_digest=digest))
    expected = uniform.compress(features(5))
    assert torch.equal(cache.read(KEY).video.tokens, expected.tokens)
    assert KEY in cache.features.parts()["tokens"]


def test_damage_of_an_opened_clip_is_found_in_the_file_before_anything_is_removed(tmp_path):
    filled(tmp_path)
    cache = token_cache(tmp_path)
    uniform = build_method("uniform", retention=0.25).compressor
    add_plan(cache, uniform)
    cache.features.opened(KEY)  # its place in the file and its checksums
    again = features()
    again = replace(again, tokens=again.tokens + 1)
    other = filled(tmp_path, ())
    other.write(clip(), again, SIGNALS, (1.0, 2.0))
    with pytest.raises(OutdatedPlanError, match="is a plan for other tokens than"):
        cache.read(KEY)  # the checksums of the older tokens do not fit, and nothing is damaged
    assert KEY in other.parts()["tokens"]


def test_tokens_that_were_rounded_elsewhere_are_stored_as_they_were_rounded(tmp_path):
    cache = filled(tmp_path, (), "int8")
    given, (levels, scales) = rounded(features())
    levels = levels.clone()
    levels[0, 0, 0] += 1 if levels[0, 0, 0] < 0 else -1  # as a device that divides differently
    cache.write(clip(), features(), (), (1.0, 2.0), (levels, scales))
    found = cache.opened(KEY).features(frozenset()).tokens
    assert torch.equal(found, restore(levels, scales, "float32"))
    assert (found != given.tokens).sum() == 1


@pytest.fixture(params=["local", "store"])
def root(tmp_path, request):
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def compacted(root, pattern="*"):
    """Put the entries of caches into shards."""
    for folder in find_caches(root, [pattern]):
        assert not [why for _, why in compact_cache(folder) if why]


def encoded_again(root, numbers):
    """Put other features in the place of those of some clips."""
    store = filled(root, ())
    for number in numbers:
        given = features(number)
        store.write(clip(number), replace(given, tokens=given.tokens + 1), (), (1.0, 2.0))


def planned_again(cache, number):
    """A plan for the features as they are now; returns what it gives."""
    uniform = build_method("uniform", retention=0.25).compressor
    add_plan(cache, uniform, number)
    given = features(number)
    return uniform.compress(replace(given, tokens=given.tokens + 1)).tokens


def test_a_newer_plan_takes_the_place_of_its_older_copy_in_a_shard(root):
    filled(root, range(3))
    cache = token_cache(root)
    for number in range(3):
        add_plan(cache, build_method("uniform", retention=0.25).compressor, number)
    compacted(root, "tiny-own-*")
    encoded_again(root, range(2))
    wanted = [planned_again(cache, number) for number in range(2)]
    compacted(root, "tiny-own-*")
    assert not [name for name in cache.storage.names() if name.endswith("-plan.parquet")]
    found = token_cache(root)
    for number, tokens in enumerate(wanted):
        assert torch.equal(found.read(clip(number).key).video.tokens, tokens)
    (folder,) = find_caches(root, ["tiny-own-*"])
    assert [one.problem for one in check_clips(folder)] == [None] * 3


def planned(root, numbers):
    """Features of some clips and a plan of each, all in shards."""
    filled(root, numbers)
    for number in numbers:
        add_plan(token_cache(root), build_method("uniform", retention=0.25).compressor, number)
    compacted(root)


def listed(root):
    """Numbers of the clips that the token cache lists, and how many plans it is not sure of."""
    cache = token_cache(root)
    keys = cache.keys()
    return {number for number in range(9) if clip(number).key in keys}, cache.unsure_plans


def test_a_listing_tells_plans_for_other_tokens_where_both_are_in_shards(root):
    planned(root, range(5))
    assert listed(root) == ({0, 1, 2, 3, 4}, 0)
    encoded_again(root, [1, 3])
    assert listed(root) == ({0, 1, 2, 3, 4}, 2), "features with files of their own have no marks"
    compacted(root)
    assert listed(root) == ({0, 2, 4}, 0)
    wanted = planned_again(token_cache(root), 3)
    assert listed(root) == ({0, 2, 3, 4}, 1), "nor has a plan with a file of its own"
    compacted(root)
    assert listed(root) == ({0, 2, 3, 4}, 1), "which a single file keeps when it is compacted"
    assert torch.equal(token_cache(root).read(clip(3).key).video.tokens, wanted)


def test_of_shards_of_an_earlier_release_a_listing_is_not_sure(root, monkeypatch):
    monkeypatch.setattr(compact, "mark_of", lambda digest: UNKNOWN)
    planned(root, range(3))
    encoded_again(root, range(2))
    compacted(root)
    assert listed(root) == ({0, 1, 2}, 3)
    monkeypatch.undo()
    encoded_again(root, [2])
    compacted(root)
    assert listed(root) == ({0, 1, 2}, 3)


def test_an_index_of_an_earlier_release_has_no_marks(tmp_path):
    root = f"memory://{tmp_path.name}"
    planned(root, range(2))
    encoded_again(root, range(2))
    compacted(root)
    cache = token_cache(root)
    table = read_sealed(cache.storage, INDEX, must=True).table
    assert UNKNOWN not in table["tokens"].to_pylist()
    write_sealed(table.drop_columns("tokens"), cache.storage, INDEX, cache.hash)
    assert listed(root) == ({0, 1}, 2)
    cache.storage.delete(INDEX)  # then the shards are asked
    assert listed(root) == (set(), 0)


def test_the_marks_of_a_clip_that_was_removed_from_its_shard_do_not_count(root):
    planned(root, range(3))
    for number in range(3):
        token_cache(root).discard(clip(number).key)
    assert listed(root) == (set(), 0)


def test_tokens_beside_a_plan_for_other_tokens_are_listed(root):
    planned(root, range(2))
    cache = token_cache(root)
    video = build_method("uniform", retention=0.25).compressor.compress(features())
    cache.write(clip(), Entry(video, 1.0, 2.0, 3.0))
    encoded_again(root, range(2))
    compacted(root)
    assert listed(root) == ({0}, 0)
