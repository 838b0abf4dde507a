"""A checkpoint from the hub, which a job then finds by its id without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants
from llava_checkpoints import build_llava, save_llava
from rich.console import Console

from jobs.fetch.hub import FetchError
from jobs.fetch.model import model_get
from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.models.checkpoints.directory import is_here

ID = "owner/small-llava"
NAME = f"models/{ID}"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A checkpoint in several files, as the hub holds it."""
    folder = save_llava(build_llava(), tmp_path_factory.mktemp("model"), "sharded")
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.iterdir()}
    return {**found, "README.md": b"---\n", "pytorch_model.bin": b"pickle" * 400}


@pytest.fixture
def published(server, files):
    server.publish(NAME, files, licence="apache-2.0")
    return server


def get(name=ID, **options):
    """Exit code and what is printed."""
    console = Console(record=True, width=200, force_terminal=False)
    return model_get(name, console, yes=True, **options), console.export_text()


def fetched(server):
    """Names of the files whose bytes were sent."""
    return {
        each.path.rpartition("/")[2]
        for each in server.requests
        if each.method == "GET" and "/api/" not in each.path
    }


def test_a_job_finds_it_by_its_id_without_a_network(monkeypatch, published):
    code, text = get()
    assert code == 0
    assert text.rstrip().endswith(f"model.path: {ID}")
    assert "licence: apache-2.0" in text
    assert not fetched(published) & {"README.md", "pytorch_model.bin"}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert is_here(ID)
    spec = describe_model("llava-onevision-7b", ID)
    load_encoder(spec)
    load_language_model(spec)


def test_it_is_fetched_once(published):
    get()
    published.requests.clear()
    code, text = get()
    assert (code, "all of it is here" in text) == (0, True)
    # Two small files say which weights there are.
    assert fetched(published) <= {"config.json", "model.safetensors.index.json"}


@pytest.mark.parametrize(
    ("half", "load"), [("encoder", load_encoder), ("language", load_language_model)]
)
def test_one_half_is_loaded_from_fewer_files(monkeypatch, published, files, half, load):
    get(half=half)
    weights = {name for name in files if name.endswith(".safetensors")}
    assert fetched(published) & weights < weights
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    load(describe_model("llava-onevision-7b", ID))


def test_offline_only_the_cache_is_looked_at(monkeypatch, published):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError, match="not complete in the hub's cache, and HF_HUB_OFFLINE"):
        get()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    get()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert get() == (0, f"{ID}: all of it is in the hub's cache\n")


def test_into_a_folder(published, tmp_path):
    code, text = get(folder=tmp_path / "llava")
    assert code == 0
    assert text.rstrip().endswith(f"model.path: {tmp_path / 'llava'}")
    load_encoder(describe_model("llava-onevision-7b", str(tmp_path / "llava")))
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.safetensors"))


def test_a_dry_run_writes_nothing(published):
    console = Console(record=True, width=200, force_terminal=False)
    assert model_get(ID, console, dry_run=True) == 0
    assert "the checkpoint: " in console.export_text()
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.safetensors"))


def test_a_half_of_an_unknown_kind_is_refused(server):
    server.publish(NAME, {"config.json": b'{"model_type": "bert"}', "model.safetensors": b"x"})
    with pytest.raises(ValueError, match=r"--half encoder: .* holds a 'bert' model"):
        get(half="encoder")


def test_weights_of_another_format_are_named(server):
    server.publish(NAME, {"config.json": b'{"model_type": "llava_onevision"}', "a.bin": b"x"})
    with pytest.raises(FetchError, match=r"has no model\.safetensors at revision main"):
        get()
