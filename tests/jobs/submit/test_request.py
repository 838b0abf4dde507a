"""What is sent: the command, its options, and what makes two jobs the same."""

from __future__ import annotations

import json

import pytest
import yaml

from jobs.config.recipe import load_jobs
from jobs.submit.head import next_id
from jobs.submit.request import jobs_to_submit, read_resources


def test_the_entry_point_checks_the_version_and_continues(request_for):
    request = request_for(version="1.2", options=("--output", "s3://a b/runs"), directory="~/my x")
    before = "exec python tango_start.py --version 1.2 --directory '~/my x' -- "
    after = "evaluate --address auto --continue --output 's3://a b/runs'"
    assert request.entrypoint == before + after


@pytest.mark.parametrize(
    "changes", [{"new": True}, {"command": "precompute"}, {"options": ("--resume", "runs/x")}]
)
def test_a_job_that_names_its_run_or_needs_none_does_not_look_for_one(request_for, changes):
    assert "--continue" not in request_for(**changes).entrypoint


def test_a_recipe_of_several_jobs_is_sent_whole(request_for, tmp_path):
    request = request_for(counts=[4, 8])
    path = tmp_path / "sent.yaml"
    path.write_text(request.recipe)
    assert load_jobs(path) == request.jobs
    assert yaml.safe_load(request.recipe)["model"]["num_frames"] == [4, 8]
    assert request.digest != request_for(counts=[4]).digest


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], "evaluate"),
        (["model.num_frames=[4,8]"], "sweep"),
        (["method.retention=[0.1,0.2]"], "sweep"),
    ],
)
def test_one_method_is_evaluated_and_several_are_swept(tmp_path, request_for, changes, expected):
    path = tmp_path / "recipe.yaml"
    path.write_text(request_for().recipe)
    assert jobs_to_submit(path, changes, None)[0] == expected


def test_the_same_job_is_known_by_what_it_does_and_where(request_for):
    first = request_for(user="anna", recipe={"executor": "local"})
    again = request_for(user="ben", version="2.0", recipe={"max_failures": 3})
    assert first.is_same(again.metadata)
    for other in (
        request_for(recipe={"limit": 3}),
        request_for(options=("--output", "elsewhere")),
        request_for(directory="/data"),
        request_for(command="sweep"),
    ):
        assert not first.is_same(other.metadata)
    assert not first.is_same({})
    assert json.loads(first.metadata["tango_arguments"]) == ["~/tango"]


def test_a_password_in_a_url_is_refused_and_not_repeated(request_for):
    request_for(options=("--tracking-uri", "http://mlflow:5000", "--output", "s3://bucket/runs"))
    with pytest.raises(ValueError, match="--tracking-uri contains a password or a token") as error:
        request_for(options=("--tracking-uri", "http://me:hunter2@mlflow:5000"))
    assert "hunter2" not in str(error.value)


def test_what_the_driver_reserves():
    assert read_resources(None, None, None, []) == {}
    assert read_resources(2, 0.5, "1kB", ["disk=1"]) == {
        "entrypoint_num_cpus": 2,
        "entrypoint_num_gpus": 0.5,
        "entrypoint_memory": 1000,
        "entrypoint_resources": {"disk": 1},
    }


def test_ids_count_the_attempts_of_one_job():
    class Job:
        def __init__(self, submission_id):
            self.submission_id = submission_id

    digest = "0123456789abcdef"
    assert next_id(digest, []) == "tango-0123456789-1"
    known = [Job("tango-0123456789-9"), Job("tango-0123456789-10"), Job("tango-ffffffffff-77")]
    assert next_id(digest, known) == "tango-0123456789-11"
    assert next_id(digest, [Job("tango-0123456789-²")]) == "tango-0123456789-1"
