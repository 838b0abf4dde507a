"""The files for `ray up`: Ray's validator, versions, and pools that fit the machines."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "infra/ray").glob("*.yaml"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def prepared(content):
    """The configuration as `ray up` completes and checks it."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    # `ray up` checks before and after it fills in the defaults, too.
    complete = prepare_config(content)
    validate_config(complete)
    return complete


@pytest.fixture(autouse=True)
def repository(monkeypatch):
    """Paths in the files start at the root of the repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_ray_accepts_the_configuration(path):
    complete = prepared(yaml.safe_load(path.read_text()))
    assert complete["cluster_name"] == "tango"
    assert len(complete["available_node_types"]) >= 1


def test_versions_are_those_of_the_project():
    texts = "".join(path.read_text() for path in FILES)
    assert set(re.findall(r"tango-video:([\w.]+)-", texts)) == {VERSION}
    assert re.findall(r"tango-video\[all\]==([\w.]+)", texts) == [VERSION]


def test_mounted_local_files_exist():
    content = yaml.safe_load((ROOT / "infra/ray/machines.yaml").read_text())
    assert all((ROOT / path).is_file() for path in content["file_mounts"].values())


def test_the_initial_machines_fit_the_pools_of_the_recipe():
    types = yaml.safe_load((ROOT / "infra/ray/aws.yaml").read_text())["available_node_types"]
    pools = yaml.safe_load((ROOT / "infra/kuberay/recipe.yaml").read_text())["pools"]
    for pool, node in (("compress", "encode"), ("answer", "answer")):
        needs = {"GPU": pools[pool]["num_gpus"], **pools[pool]["resources"]}
        offered = types[node]["resources"]
        fit = min(offered[kind] // amount for kind, amount in needs.items())
        assert fit * types[node]["min_workers"] >= pools[pool]["num_actors"], pool
        others = [name for name in types if name != node]
        assert not any(set(needs) <= set(types[name]["resources"]) for name in others)
    assert types["decode"]["resources"]["CPU"] >= pools["decode"]["num_cpus"]
    assert sum(one["max_workers"] for one in types.values()) == 28
