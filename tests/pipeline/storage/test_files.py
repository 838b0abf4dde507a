import pytest

from pipeline.storage import Storage


def test_a_writer_that_dies_leaves_the_old_file_and_nothing_visible(tmp_path):
    storage = Storage.at(str(tmp_path))
    storage.write("a.parquet", b"old")
    with pytest.raises(TypeError):
        storage.write("a.parquet", object())  # the stream opens, the first byte cannot be written
    assert storage.read("a.parquet") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def write_half(storage):
    with storage.writing("b") as file:
        file.write(b"half")
        raise InterruptedError


@pytest.mark.parametrize("kind", ["local", "fsspec"])
def test_a_file_written_in_pieces_is_there_when_it_is_whole(tmp_path, kind):
    storage = Storage.at(str(tmp_path) if kind == "local" else "memory://pieces")
    with storage.writing("a") as file:
        file.write(b"one ")
        assert storage.names() == []
        file.write(b"two")
    assert storage.read("a") == b"one two"
    with pytest.raises(InterruptedError):
        write_half(storage)
    assert [info.name for info in storage.files()] == ["a"]


def test_urls_of_fsspec_file_systems_work_like_directories():
    storage = Storage.at("memory://bucket/cache").child("one")
    storage.write("b.parquet", b"bytes")
    assert storage.exists("b.parquet")
    assert not storage.exists("c.parquet")
    assert storage.names(".parquet") == ["b.parquet"]
    assert storage.read("b.parquet") == b"bytes"
    assert storage.size("b.parquet") == 5
    storage.delete("b.parquet")
    assert storage.names() == []


def test_an_unknown_url_is_refused_in_one_line():
    with pytest.raises(ValueError, match="nonsense://") as error:
        Storage.at("nonsense://bucket/x")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["local", "fsspec"])
def test_a_directory_is_made_once(tmp_path, kind):
    storage = Storage.at(tmp_path if kind == "local" else "memory://made").child("new")
    storage.create()
    assert storage.is_folder()
    with pytest.raises(FileExistsError):
        storage.create()
