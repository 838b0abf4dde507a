"""New SQLite stores as copies of an empty one: equal to MLflow's own, and never in its way."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jobs.tracking.empty_store import begun, sqlite_file


@pytest.fixture(scope="session")
def pattern(empty_store, tmp_path_factory):
    """What the first store of a user leaves behind."""
    path = tmp_path_factory.mktemp("cache") / "mlflow" / "3.db"
    new = empty_store.with_name("new.db")
    with begun(f"sqlite:///{new}", path):
        new.write_bytes(empty_store.read_bytes())  # as MLflow would make it
    return path


def tables_of(path: Path) -> dict[str, int]:
    """Table -> number of its rows."""
    with closing(sqlite3.connect(path)) as store:
        names = store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: store.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for (name,) in names
        }


def schema_of(path: Path) -> list[tuple[object, ...]]:
    """Tables and indices as they were declared, with the version that MLflow checks."""
    with closing(sqlite3.connect(path)) as store:
        declared = store.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2")
        return [
            *declared.fetchall(),
            *store.execute("SELECT * FROM alembic_version").fetchall(),
        ]


def test_a_new_store_is_a_copy_that_mlflow_takes_for_its_own(empty_store, pattern, tmp_path):
    from mlflow import MlflowClient

    path = tmp_path / "mlflow.db"
    uri = f"sqlite:///{path}"
    with begun(uri, pattern):
        assert schema_of(path) == schema_of(empty_store)
        assert tables_of(path) == {**tables_of(empty_store), "experiments": 0}
        client = MlflowClient(tracking_uri=uri)
        experiment = client.create_experiment("tango")
    assert client.create_run(experiment).info.experiment_id == experiment
    assert tables_of(path) | {"runs": 0, "tags": 0} == {**tables_of(empty_store), "experiments": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_store_that_is_there_is_left_alone(pattern, tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"")
    with begun(f"sqlite:///{path}", pattern):
        assert path.read_bytes() == b""


def test_a_store_with_runs_is_no_pattern(store, client, tmp_path):
    made = sqlite_file(store)
    client.create_run("0")
    kept = tmp_path / "cache" / "3.db"
    new = tmp_path / "new.db"
    with begun(f"sqlite:///{new}", kept):
        made.rename(new)  # another job logged its run at the same time
    assert not kept.exists()


def test_a_damaged_pattern_is_replaced(empty_store, pattern, tmp_path):
    kept, new = tmp_path / "cache" / "3.db", tmp_path / "mlflow.db"
    kept.parent.mkdir()
    kept.write_bytes(pattern.read_bytes()[:5000] + bytes(8000))
    with begun(f"sqlite:///{new}", kept):
        assert not new.exists()
        new.write_bytes(empty_store.read_bytes())
    assert tables_of(kept) == tables_of(pattern)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cache", "mlflow.db"]


def test_a_cache_that_cannot_be_written_costs_nothing(empty_store, tmp_path):
    (tmp_path / "file").write_text("")
    new = tmp_path / "mlflow.db"
    with begun(f"sqlite:///{new}", tmp_path / "file" / "3.db"):
        new.write_bytes(empty_store.read_bytes())
    assert tables_of(new) == tables_of(empty_store)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:////data/mlflow.db", Path("/data/mlflow.db")),
        ("sqlite:///mlflow.db", Path("mlflow.db")),
        ("sqlite:///mlflow.db?timeout=9", None),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("postgresql://host/mlflow", None),
        ("http://host:5000", None),
    ],
)
def test_only_plain_files_are_copied(uri, path):
    assert sqlite_file(uri) == path
