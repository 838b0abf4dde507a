"""Archives into folders: all of them, once, and nothing outside."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from hub_releases import cut, tarred, zipped
from hub_server import digest_of

from jobs.fetch.hub import FetchError, RemoteFile, move
from jobs.fetch.unpack import Archive, Unpacked, archives_among, unpack

MEMBERS = {f"videos/{number}.mp4": bytes([number]) * 5_000 for number in range(8)}


def placed(root: Path, files: dict[str, bytes], folder: str = "") -> Archive:
    """The one archive that some files make, which lie in their places."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    remote = [RemoteFile(name, len(data), digest_of(data)) for name, data in files.items()]
    (archive,) = archives_among((file, folder) for file in remote)
    return archive


def contents(root: Path) -> dict[str, bytes]:
    """Files below a folder, without the notes."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".tango-get" not in path.parts
    }


def interrupted(monkeypatch, root: Path, archive: Archive, after: int) -> None:
    """Unpack an archive until so many members are in their places."""
    left = iter(range(after))

    def move_some(source, target):
        if next(left, None) is None:
            raise KeyboardInterrupt
        move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("jobs.fetch.hub.move", move_some)
        with pytest.raises(KeyboardInterrupt):
            unpack(root, archive, keep=False)
    assert not Unpacked(root, archive).is_complete


KINDS = {
    "zip": {"clips.zip": zipped(MEMBERS)},
    "zip in pieces": cut("clips.zip", zipped(MEMBERS), 4),
    "tar": {"clips.tar": tarred(MEMBERS)},
    "tar in pieces": cut("clips.tar", tarred(MEMBERS), 4),
    "tar.gz": {"clips.tar.gz": tarred(MEMBERS, "w:gz")},
    "numbered": {
        f"clips.zip.{n:03}": d for n, d in enumerate(cut("", zipped(MEMBERS), 3).values())
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [False, True])
def test_every_kind_is_unpacked_and_removed_if_it_may(tmp_path, kind, keep):
    archive = placed(tmp_path, KINDS[kind])
    assert unpack(tmp_path, archive, keep=keep) == len(MEMBERS)
    assert contents(tmp_path) == {**MEMBERS, **(KINDS[kind] if keep else {})}
    assert Unpacked(tmp_path, archive).is_complete


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_stopped_goes_on_and_writes_nothing_twice(monkeypatch, tmp_path, kind):
    archive = placed(tmp_path, KINDS[kind])
    interrupted(monkeypatch, tmp_path, archive, 5)
    before = {path: path.stat().st_ino for path in tmp_path.glob("videos/*")}
    assert len(before) == 5
    assert unpack(tmp_path, archive, keep=False) == len(MEMBERS)
    assert contents(tmp_path) == MEMBERS
    assert {path: path.stat().st_ino for path in before} == before


def test_pieces_of_a_tar_go_while_it_is_unpacked(monkeypatch, tmp_path):
    archive = placed(tmp_path, KINDS["tar in pieces"])
    interrupted(monkeypatch, tmp_path, archive, 5)
    assert [path.name for path in sorted(tmp_path.glob("clips*"))] == [
        "clips.tar.part.ac",
        "clips.tar.part.ad",
    ]


def test_a_torn_line_of_the_record_counts_as_not_written(monkeypatch, tmp_path):
    archive = placed(tmp_path, KINDS["tar"])
    interrupted(monkeypatch, tmp_path, archive, 3)
    (journal,) = tmp_path.glob(".tango-get/archives/*")
    journal.write_text(journal.read_text()[:-9])
    assert len(Unpacked(tmp_path, archive).members) == 2
    assert unpack(tmp_path, archive, keep=False) == len(MEMBERS)
    assert contents(tmp_path) == MEMBERS


def test_a_member_that_somebody_removed_is_missed(tmp_path):
    archive = placed(tmp_path, KINDS["zip"])
    unpack(tmp_path, archive, keep=True)
    (tmp_path / "videos/3.mp4").unlink()
    assert not Unpacked(tmp_path, archive).is_complete
    assert unpack(tmp_path, archive, keep=True) == len(MEMBERS)
    assert (tmp_path / "videos/3.mp4").exists()


OUTSIDE = ["../out.mp4", "/out.mp4", "videos/../../out.mp4", "C:/a.mp4", ".tango-get/lock", "a\\b"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name, suffix):
    make = zipped if suffix == ".zip" else tarred
    root = tmp_path / "root"
    archive = placed(root, {f"clips{suffix}": make({"good.mp4": b"good", name: b"bad"})})
    with pytest.raises(FetchError, match="leads out of the folder"):
        unpack(root, archive, keep=False)
    assert {path.name for path in tmp_path.iterdir()} == {"root"}
    assert set(contents(root)) == {"good.mp4", f"clips{suffix}"}


def link_in_a_tar(kind):
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        info = tarfile.TarInfo("videos/link.mp4")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    return {"clips.tar": output.getvalue()}


def link_in_a_zip():
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        info = zipfile.ZipInfo("videos/link.mp4")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    return {"clips.zip": output.getvalue()}


KINDS_OF_LINKS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)


@pytest.mark.parametrize("files", [*map(link_in_a_tar, KINDS_OF_LINKS), link_in_a_zip()])
def test_links_and_devices_are_refused(tmp_path, files):
    with pytest.raises(FetchError, match="a link or a device"):
        unpack(tmp_path, placed(tmp_path, files), keep=False)
    assert not (tmp_path / "videos").exists()


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_a_bomb_is_not_unpacked(monkeypatch, tmp_path, suffix):
    monkeypatch.setattr("jobs.fetch.unpack._ALWAYS_ALLOWED", 0)
    zeros = {f"videos/{number}.mp4": bytes(10**6) for number in range(3)}
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in zeros.items():
            archive.writestr(name, data)
    data = output.getvalue() if suffix == ".zip" else tarred(zeros, "w:gz")
    with pytest.raises(FetchError, match="would unpack to"):
        unpack(tmp_path, placed(tmp_path, {f"clips{suffix}": data}), keep=False)
    assert sum(map(len, contents(tmp_path).values())) < 2 * 10**6 + len(data)


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar in pieces"])
def test_a_cut_off_archive_is_one_line_and_its_whole_members_stay(tmp_path, kind):
    *whole, (name, data) = KINDS[kind].items()
    archive = placed(tmp_path, {**dict(whole), name: data[: len(data) // 3]})
    with pytest.raises(FetchError, match=r"clips\.\S+ cannot be unpacked") as error:
        unpack(tmp_path, archive, keep=False)
    assert "\n" not in str(error.value)
    for path, content in contents(tmp_path).items():
        assert not path.endswith(".mp4") or content == MEMBERS[path]


def test_an_encrypted_zip_is_named(tmp_path):
    data = bytearray(zipped({"a.mp4": b"x"}))
    entry = data.index(b"PK\x01\x02")
    data[entry + 8] |= 1
    with pytest.raises(FetchError, match=r"cannot be unpacked: .* is encrypted"):
        unpack(tmp_path, placed(tmp_path, {"clips.zip": bytes(data)}), keep=False)


def test_a_tar_that_was_killed_behind_its_last_member_is_complete(tmp_path):
    archive = placed(tmp_path, KINDS["tar"])
    record = Unpacked(tmp_path, archive)
    for number, (name, data) in enumerate(MEMBERS.items(), 1):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
        record.add(tmp_path / name, len(data), number * (512 + 5120))
    assert unpack(tmp_path, archive, keep=False) == len(MEMBERS)


def test_another_version_of_an_archive_is_unpacked_anew(tmp_path):
    unpack(tmp_path, placed(tmp_path, KINDS["zip"]), keep=False)
    changed = {name: data[::-1] + b"!" for name, data in MEMBERS.items()}
    unpack(tmp_path, placed(tmp_path, {"clips.zip": zipped(changed)}), keep=False)
    assert contents(tmp_path) == changed


def test_a_member_whose_bytes_are_wrong_does_not_arrive(tmp_path):
    data = bytearray(zipped(MEMBERS))
    data[200] ^= 1
    with pytest.raises(FetchError, match="cannot be unpacked"):
        unpack(tmp_path, placed(tmp_path, {"clips.zip": bytes(data)}), keep=False)
    assert not (tmp_path / "videos/0.mp4").exists()
