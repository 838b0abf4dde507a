"""Videos, annotations, caches, runs and files of MLflow in a store, on a real S3 server."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import yaml
from s3_server import SECRET, new_bucket, s3_of_this_process

from pipeline.storage.objects import ObjectStore
from tango_core.benchmarks import build_benchmark


@pytest.fixture(scope="module")
def server():
    with s3_of_this_process() as server:
        yield server


@pytest.fixture
def bucket(server, tmp_path):
    """A bucket with a release of three clips with questions."""
    name = new_bucket(server)
    store, rows = ObjectStore("s3"), []
    for number, item in enumerate(
        build_benchmark("shapes", root=str(tmp_path / "shapes")).items(3)
    ):
        with open(item.path, "rb") as file:
            store.write(f"{name}/release/videos/{number}.mp4", file.read())
        for question in item.questions:
            row = {"video": f"videos/{number}.mp4", "question": question.text}
            row |= {"options": list(question.choices), "answer": "ABCDEFGH"[question.answer]}
            rows.append(json.dumps(row))
    store.write(f"{name}/release/questions.jsonl", "\n".join(rows).encode())
    return name


@pytest.fixture
def recipe(bucket, tmp_path):
    content = {
        "benchmark": {"name": "custom", "root": f"s3://{bucket}/release"},
        "model": {"name": "tiny"},
        "methods": [{"name": "full"}, {"name": "tango", "retention": 0.2}],
        "decode": {"video_cache": str(tmp_path / "videos")},
        "executor": "local",
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return "recipe.yaml"


def objects(bucket: str, folder: str) -> dict[str, bytes]:
    """Path below a folder of the bucket -> content."""
    store, start = ObjectStore("s3"), f"{bucket}/{folder}/"
    return {e.path[len(start) :]: store.read(e.path) for e in store.tree(start.rstrip("/"))}


@pytest.mark.slow
def test_a_sweep_with_all_files_in_a_store(tango, recipe, bucket, server, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", server.endpoint)
    output = f"s3://{bucket}/runs"
    code, out, err = tango("sweep", recipe, "--output", output)
    assert code == 0, err
    assert "3 decoded, 3 encoded" in out
    there = objects(bucket, "runs")
    run = next(name for name in there if name.endswith("/job.yaml")).removesuffix("/job.yaml")
    assert f"report:  {output}/{run}/report.html" in out
    for name in ("facts.json", "summary.json", "report.html", "failures.parquet"):
        assert there[f"{run}/{name}"]
    assert any(name.startswith(f"{run}/plots/") for name in there)
    parts = [name for name in there if name.startswith(f"{run}/answers/")]
    assert sum(pq.read_table(io.BytesIO(there[name])).num_rows for name in parts) > 0
    assert any(name.startswith("cache/tiny-") for name in there)
    assert any(name.startswith("mlartifacts/") and "report.html" in name for name in there)
    # A run that has ended is resumed without a clip; its name says where it is.
    code, out, err = tango("sweep", recipe, "--output", output, "--resume", f"{output}/{run}")
    assert code == 0, err
    assert "0 (0 decoded" in out
    # Another run takes all from the cache of the store.
    code, out, _ = tango(
        "sweep", recipe, "--output", tmp_path / "here", "--cache", f"{output}/cache"
    )
    assert code == 0
    assert "0 decoded, 0 encoded" in out
    code, out, err = tango("report", f"{output}/{run}", "--output", f"s3://{bucket}/compared")
    assert code == 0, err
    assert f"report: s3://{bucket}/compared/report.html" in out
    assert {"paper_table.md", "table.csv", "report.html"} <= objects(bucket, "compared").keys()
    code, out, _ = tango("cache", "ls", "--cache", f"{output}/cache")
    assert code == 0
    assert "2 token cache(s), 6 clips" in out
    code, out, _ = tango("cache", "verify", "--cache", f"{output}/cache")
    assert (code, "all good" in out) == (0, True)
    # The key that opened all this is nowhere.
    everything = b"".join(objects(bucket, "runs").values()) + out.encode() + err.encode()
    assert SECRET.encode() not in everything
    assert SECRET.encode() not in (tmp_path / "runs" / "mlflow.db").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--output", "s3://AKIAX:hush-hush@bucket/runs"], "s3://***@bucket/runs: "),
        (["--cache", "s3://bucket/cache?secret=hush-hush"], "secret=***"),
        (["--set", "benchmark.root=s3://me:hush-hush@bucket/x"], "benchmark.root"),
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(tango, recipe, arguments, named):
    code, out, err = tango("sweep", recipe, *arguments)
    assert code == 2
    assert named in err
    assert "hush" not in out + err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_on_ray_reads_and_writes_a_store(tango, recipe, bucket):
    """Every worker opens the store itself, and every video is fetched once for all of them.

    In a process of its own: the workers of a Ray that other tests started know no credentials.
    """
    output = f"s3://{bucket}/runs"
    arguments = ["sweep", recipe, "--output", output, "--set", "pools.decode.num_cpus=0.5"]
    code = (
        "import sys, jobs.run.driver as compaction\n"
        "from jobs.cli.main import main\n"
        "compaction.AT_LEAST = 2\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments), "--set", "executor=ray"],
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "3 decoded, 3 encoded" in done.stdout
    names = objects(bucket, "runs")
    assert sum("/shard-" in name for name in names) == 2  # compacted, because it is in a store
    assert sum(name.endswith("/shards.index") for name in names) == 2
    code, out, err = tango("sweep", recipe, "--output", output, "--set", "executor=local")
    assert code == 0, err
    assert "0 decoded, 0 encoded" in out
