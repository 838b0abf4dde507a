"""Files are uploaded without secrets, and are read afterwards as what they are."""

from __future__ import annotations

import json
import math

import pytest
import yaml

from jobs.tracking.runs import MlflowRuns, without_secrets

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
    "nan": math.nan,
}
CLEAN = {
    **{key: HELD[key] for key in ("limit", "share")},
    "failures": {'cannot open "https://host/a?token=***": 403\nend': 2},
    "***": ["***", "x***", None, True, 1.0],
    "why": "wrong: ***",
    "root": "s3://***@bucket/videos",
    "nan": "nan",
}


def shown(held):
    return {**held, "nan": str(held["nan"])}


@pytest.mark.parametrize("as_ascii", [True, False])
def test_json_stays_json_with_its_numbers(tmp_path, as_ascii):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(HELD, ensure_ascii=as_ascii), encoding="utf-8")
    assert shown(json.loads(without_secrets(path))) == CLEAN


@pytest.mark.parametrize("style", [None, '"'])
def test_yaml_stays_yaml_without_its_comments(tmp_path, style):
    path = tmp_path / "job.yaml"
    text = yaml.safe_dump(HELD, default_style=style, sort_keys=False)
    path.write_text(f"# {WORDS}.yaml\n{text}", encoding="utf-8")
    clean = without_secrets(path)
    assert WORDS not in clean
    assert shown(yaml.safe_load(clean)) == CLEAN


@pytest.mark.parametrize(
    ("name", "text", "clean"),
    [
        ("facts.json", f'{{"a": {NUMBER}, "b":    NaN}}', None),
        ("job.yaml", f"# a\na:   {NUMBER}  # b\nb: .nan\n", f"a: {NUMBER}\nb: .nan\n"),
        ("job.yaml", "# a\na:   1  # b\nb: .nan\n", None),
        ("a.png", WORDS, None),
        (
            "job.yaml",
            f"# {WORDS}\n# b\na:   1  # as written\n",
            "a: 1\n",
        ),
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


def test_the_store_gets_the_clean_file(tmp_path, client):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "summary.json"
    path.write_text(json.dumps(HELD))
    experiment = client.create_experiment("a", artifact_location=(tmp_path / "files").as_uri())
    run = client.create_run(experiment).info.run_id
    runs = MlflowRuns(client, experiment, tmp_path / "run")
    runs.file(run, path)
    runs.file(run, path, "plots")
    sent = list((tmp_path / "files").rglob("summary.json"))
    assert {one.parent.name for one in sent} == {"artifacts", "plots"}
    assert [shown(json.loads(one.read_text())) for one in sent] == [CLEAN, CLEAN]
