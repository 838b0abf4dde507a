"""What a user causes ends in one line and code 2; an error of the package shows its traceback."""

from __future__ import annotations

import json

import pytest

RECIPE = {
    "benchmark": {"name": "shapes"},
    "model": {"name": "tiny"},
    "method": {"name": "tango", "retention": 0.1},
    "executor": "local",
    "limit": 1,
}


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("jobs.config.recipe.expand_method", KeyError),
        ("tango_core.compressors.checked_options", TypeError),
        ("jobs.run.build.describe_model", ValueError),
        ("jobs.run.planning.plan_methods", AssertionError),
    ],
)
def test_an_error_of_the_package_shows_its_traceback(tango, monkeypatch, tmp_path, function, error):
    def broken(*_: object, **__: object) -> None:
        raise error("object of type 'NoneType' has no len()")

    (tmp_path / "recipe.yaml").write_text(json.dumps(RECIPE))
    monkeypatch.setattr(function, broken)
    code, _, err = tango("evaluate", "recipe.yaml")
    assert code == 1
    assert "Traceback (most recent call last)" in err
    assert f"{error.__name__}: " in err
    assert "in broken" in err
    assert "this is an error in tango-video, not in your input; please report it" in err
