"""Files are uploaded without secrets, and are read afterwards as what they are."""

from __future__ import annotations

import json
import math

import pytest
import yaml

from jobs.tracking.clean_files import without_secrets
from jobs.tracking.mlflow_runs import MlflowRuns

NUMBER, WORDS, ESCAPED = "20240917", "very-secret-word", 'say "hé\\llo"'


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    monkeypatch.setenv("NUMBER_TOKEN", NUMBER)
    monkeypatch.setenv("WORDS_PASSWORD", WORDS)
    monkeypatch.setenv("ESCAPED_SECRET", ESCAPED)


HELD = {
    "limit": int(NUMBER),
    "share": float(f"0.{NUMBER}"),
    "failures": {'cannot open "https://host/a?token=abc": 403\nend': 2},
    WORDS: [WORDS, f"x{NUMBER}", None, True, 1.0],
    "why": f"wrong: {ESCAPED}",
    "root": "s3://key:pass@bucket/videos",
}
CLEAN = {
    **{key: HELD[key] for key in ("limit", "share")},
    "failures": {'cannot open "https://host/a?token=***": 403\nend': 2},
    "***": ["***", "x***", None, True, 1.0],
    "why": "wrong: ***",
    "root": "s3://***@bucket/videos",
}


@pytest.mark.parametrize("as_ascii", [True, False])
@pytest.mark.parametrize("indent", [2, None])
def test_json_stays_json_with_its_numbers(tmp_path, as_ascii, indent):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(HELD, indent=indent, ensure_ascii=as_ascii), encoding="utf-8")
    assert json.loads(without_secrets(path)) == CLEAN


@pytest.mark.parametrize("style", [None, '"'])
def test_yaml_stays_yaml_and_keeps_its_first_lines(tmp_path, style):
    path = tmp_path / "job.yaml"
    text = yaml.safe_dump(HELD, default_style=style, sort_keys=False)
    held = yaml.safe_load(text)
    path.write_text(f"# {WORDS}.yaml\n{text}", encoding="utf-8")
    clean = without_secrets(path)
    assert clean.startswith("# ***.yaml\n")
    assert yaml.safe_load(clean) == CLEAN
    assert held == HELD


def test_a_secret_in_a_comment_alone_leaves_the_rest_as_it_is(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(f"# {WORDS}.yaml\n# b\na:   1  # as written\n")
    assert without_secrets(path) == "# ***.yaml\n# b\na:   1  # as written\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("facts.json", f'{{"a": {NUMBER}, "b":    NaN}}'),
        ("job.yaml", f"# a\na:   {NUMBER}  # b\nb: .nan\n"),
        ("a.png", WORDS),
    ],
)
def test_what_holds_no_secret_is_sent_as_it_is(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert without_secrets(tmp_path / name) is None


@pytest.mark.parametrize(
    ("name", "text", "clean"),
    [
        ("cut.json", f'{{"a": "{WORDS}", ', '{"a": "***", '),
        ("cut.yaml", f"a: [{WORDS}", "a: [***"),
        ("deep.json", "[" * 100_000 + WORDS, "[" * 100_000 + "***"),
        ("page.html", f"<p>{WORDS} {NUMBER}", "<p>*** ***"),
        ("scores.csv", f"a,{WORDS}\n", "a,***\n"),
    ],
)
def test_everything_else_is_redacted_as_text(tmp_path, name, text, clean):
    (tmp_path / name).write_text(text)
    assert without_secrets(tmp_path / name) == clean


def test_a_number_that_is_none_stays_beside_a_secret(tmp_path):
    (tmp_path / "a.json").write_text(f'{{"a": NaN, "b": "{WORDS}"}}')
    found = json.loads(without_secrets(tmp_path / "a.json"))
    assert math.isnan(found["a"])
    assert found["b"] == "***"


def test_the_store_gets_the_clean_file(tmp_path, client, store):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "summary.json"
    path.write_text(json.dumps(HELD))
    experiment = client.create_experiment("a", artifact_location=(tmp_path / "files").as_uri())
    run = client.create_run(experiment).info.run_id
    runs = MlflowRuns(client, experiment, "run")
    runs.file(run, path)
    runs.file(run, path, "plots")
    sent = list((tmp_path / "files").rglob("summary.json"))
    assert {one.parent.name for one in sent} == {"artifacts", "plots"}
    assert [json.loads(one.read_text()) for one in sent] == [CLEAN, CLEAN]
