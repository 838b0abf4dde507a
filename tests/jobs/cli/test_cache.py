"""Wrong command lines of `tango cache ...`."""

from __future__ import annotations

import pytest
from filled_caches import fill


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ls"], "--cache runs/cache: no such directory"),
        (["ls", "--cache", "caches/{name}"], "is one token cache"),
        (["ls", "--cache", "nonsense://x"], "cannot open nonsense://x"),
        (["verify", "--cache", "caches", "tiny-*", "big-*"], "no token cache in caches is called"),
        (["gc", "--cache", "caches", "--older-than", "30"], "--older-than '30' is not an age"),
        (["gc", "--cache", "caches", "--max-size", "much"], "--max-size 'much' is not a size"),
        (["gc", "--cache", "caches", "--name", "big"], "no token cache in caches is called 'big'"),
        (["export", "big", "out", "--cache", "caches"], "no token cache in caches is called 'big'"),
        (["export", "*", "out", "--cache", "caches"], "'*' stands for several token caches"),
        (["export", "*-evs-*", "out", "--cache", "caches"], "cannot be exported: manifest.json"),
        (["compact", "--cache", "caches", "big"], "no token cache in caches is called 'big'"),
        (["compact", "--cache", "nowhere"], "--cache nowhere: no such directory"),
        (["gc", "--cache", "nowhere"], "--cache nowhere: no such directory"),
        (["verify", "--cache", "nowhere"], "--cache nowhere: no such directory"),
    ],
)
def test_a_mistake_ends_in_one_line(tango, tmp_path, arguments, expected):
    name = fill(tmp_path / "caches", range(1)).name
    fill(tmp_path / "caches", range(1), name="evs").storage.write("manifest.json", b"[]")
    code, _, err = tango("cache", *(word.format(name=name) for word in arguments))
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1, err
