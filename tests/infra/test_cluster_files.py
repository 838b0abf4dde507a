"""Manifests for KubeRay and files for `ray up`: schema, versions, and pools that fit."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from jobs.config.recipe import parse_job

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra/kuberay"
SCHEMAS = json.loads((ROOT / "tests/fixtures/kuberay/schemas.json").read_text())
MANIFESTS = ("raycluster.yaml", "rayjob.yaml")
FILES = sorted((ROOT / "infra/ray").glob("*.yaml"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def loaded(name):
    """A manifest."""
    return yaml.safe_load((FOLDER / name).read_text())


def cluster_of(manifest):
    """The specification of the cluster in a manifest."""
    return manifest["spec"].get("rayClusterSpec", manifest["spec"])


def groups_of(cluster):
    """Name of each group of nodes -> its specification."""
    workers = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"], **workers}


def errors_of(manifest):
    """What KubeRay's schema says of a manifest."""
    schema = {**SCHEMAS[manifest["kind"]], "$defs": SCHEMAS["$defs"]}
    return [
        error.message for error in jsonschema.Draft7Validator(schema).iter_errors(manifest["spec"])
    ]


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_schema_of_kuberay_accepts_it(name):
    manifest = loaded(name)
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert manifest["apiVersion"] == "ray.io/v1"
    assert errors_of(manifest) == []


def test_both_manifests_describe_one_cluster():
    assert cluster_of(loaded("rayjob.yaml")) == cluster_of(loaded("raycluster.yaml"))


@pytest.mark.parametrize("name", MANIFESTS)
def test_images_are_those_of_this_version(name):
    images = re.findall(r"image: (\S+)", (FOLDER / name).read_text())
    assert len(images) >= 4
    assert set(images) == {
        f"registry.example.com/tango-video:{VERSION}-{kind}" for kind in ("cpu", "cuda")
    }


def test_pods_have_limits_and_probes_secrets_are_references_and_nobody_is_root():
    for group, own in groups_of(cluster_of(loaded("rayjob.yaml"))).items():
        pod = own["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"], group
        (container,) = pod["containers"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        resources = container["resources"]
        assert resources["limits"]["memory"] == resources["requests"]["memory"]
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["path"].endswith("_healthz")
        wants_gpu = "nvidia.com/gpu" in resources["limits"]
        assert wants_gpu == container["image"].endswith("-cuda") == (group in ("encode", "answer"))
        for variable in container["env"]:
            is_secret = re.search("KEY|PASSWORD|USERNAME|TOKEN", variable["name"])
            assert bool(is_secret) == ("secretKeyRef" in variable.get("valueFrom", {})), variable


def nodes_of(cluster):
    """Ray's resources of every node that the cluster starts with."""
    nodes = []
    for group in cluster["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        parameters = group["rayStartParams"]
        own = json.loads(json.loads(parameters["resources"])) if "resources" in parameters else {}
        cpus = float(parameters.get("num-cpus", limits["cpu"]))
        node = {"CPU": cpus, "GPU": float(limits.get("nvidia.com/gpu", 0)), **own}
        nodes += [(group["groupName"], dict(node)) for _ in range(group["minReplicas"])]
    return nodes


def num_bytes(quantity):
    """Of Kubernetes' `8Gi`."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)", quantity).groups()
    return int(number) << (10 * (1 + "KMGT".index(unit[0])))


def test_the_object_store_of_every_group_fits_its_shared_memory():
    """Ray moves a store that is larger than /dev/shm to a disk."""
    for group, own in groups_of(cluster_of(loaded("rayjob.yaml"))).items():
        pod = own["template"]["spec"]
        (container,) = pod["containers"]
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        shared = num_bytes(volumes[mounts["/dev/shm"]]["emptyDir"]["sizeLimit"])
        store = int(own["rayStartParams"]["object-store-memory"])
        memory = num_bytes(container["resources"]["limits"]["memory"])
        assert 0 < store <= shared < memory, group


def test_the_pools_of_the_recipe_fit_their_groups():
    """Every actor has room on one group only, and all of them have room at the start."""
    pools = yaml.safe_load((FOLDER / "recipe.yaml").read_text())["pools"]
    nodes = nodes_of(cluster_of(loaded("rayjob.yaml")))
    for pool, group in (("decode", "decode"), ("compress", "encode"), ("answer", "answer")):
        wanted = pools[pool]
        needs = {"CPU": wanted.get("num_cpus", 0), "GPU": wanted.get("num_gpus", 0)}
        needs |= wanted.get("resources", {})
        for _ in range(wanted.get("num_actors", 1)):
            room = [
                (name, node)
                for name, node in nodes
                if all(node.get(kind, 0) >= amount for kind, amount in needs.items())
            ]
            assert {name for name, _ in room} == {group}, pool
            for kind, amount in needs.items():
                room[0][1][kind] = room[0][1].get(kind, 0) - amount


def test_prometheus_finds_the_metrics_of_every_pod_of_ray():
    (endpoint,) = loaded("podmonitor.yaml")["spec"]["podMetricsEndpoints"]
    labels = loaded("podmonitor.yaml")["spec"]["selector"]["matchLabels"].items()
    for group in groups_of(cluster_of(loaded("rayjob.yaml"))).values():
        (container,) = group["template"]["spec"]["containers"]
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        # KubeRay makes `ray start` export to 8080, and adds the labels of its own.
        assert ports[endpoint["port"]] == 8080
        own = {**group["template"]["metadata"]["labels"], "ray.io/is-ray-node": "yes"}
        assert labels <= own.items()


def test_the_entrypoint_runs_a_valid_recipe():
    entrypoint = loaded("rayjob.yaml")["spec"]["entrypoint"].split()
    # test_attempt.py says what this program does; the image has it there.
    assert entrypoint[:3] == ["exec", "python", "/opt/attempt.py"]
    assert "/attempt.py /opt/attempt.py\n" in (ROOT / "infra/docker/Dockerfile").read_text()
    assert entrypoint[3:6] == ["tango", "sweep", "/recipes/recipe.yaml"]
    assert "--continue" in entrypoint
    recipe = yaml.safe_load((FOLDER / "recipe.yaml").read_text())
    for pool in recipe["pools"].values():
        pool.pop("resources", None)
    assert parse_job(recipe, "recipe.yaml").all_methods[0][0] == "full"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_ray_accepts_the_configuration(path, monkeypatch):
    from ray.autoscaler._private.util import prepare_config, validate_config

    monkeypatch.chdir(ROOT)  # where paths in the files start
    # `ray up` checks before and after it fills in the defaults, too.
    complete = prepare_config(yaml.safe_load(path.read_text()))
    validate_config(complete)
    assert complete["cluster_name"] == "tango"
    assert len(complete["available_node_types"]) >= 1


def test_machines_get_this_version():
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
