import stat
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import files_below, largest_file

from competition.config.errors import UserError
from competition.kaggle import archive

FILES = {"train/a.jpg": b"a" * 1000, "train/b.jpg": bytes(range(256)) * 40, "sample_submission.csv": b"id,label\n"}

SIZES = {name: len(data) for name, data in FILES.items()}


def write_zip(path, members):
    """members: (name or ZipInfo, bytes) pairs."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive_file:
        for name, data in members:
            archive_file.writestr(name, data)
    return path


@pytest.fixture
def valid_zip(tmp_path):
    return write_zip(tmp_path / "valid.zip", FILES.items())


def member(attribute, value):
    info = zipfile.ZipInfo("link")
    setattr(info, attribute, value)
    return info, b"/etc/passwd"


def test_a_valid_archive_is_unpacked_completely(tmp_path, valid_zip):
    progress = []
    report = lambda *done_and_total: progress.append(done_and_total)  # noqa: E731
    assert archive.extract(valid_zip, tmp_path / "first", progress=report) is None
    assert progress[-1] == (sum(SIZES.values()), sum(SIZES.values()))
    (tmp_path / "raw").mkdir()  # an empty folder may exist
    archive.extract(valid_zip, tmp_path / "raw")
    assert files_below(tmp_path / "raw") == files_below(tmp_path / "first") == FILES
    assert {p.name for p in tmp_path.iterdir()} == {"first", "raw", "valid.zip"}


def test_small_files_of_every_kind_are_unpacked_as_zipfile_reads_them(tmp_path):
    kinds = {
        "ä.jpg": zipfile.ZIP_DEFLATED,
        "b.jpg": zipfile.ZIP_STORED,
        "c.jpg": zipfile.ZIP_LZMA,
        "empty": zipfile.ZIP_DEFLATED,
    }
    with (tmp_path / "kinds.zip").open("wb") as file, zipfile.ZipFile(file, "w") as written:
        for name, kind in kinds.items():
            written.writestr(name, b"" if name == "empty" else name.encode() * 99, kind)
        with written.open("large", "w") as large:
            large.write(bytes(archive.CHUNK + 1))
    archive.extract(tmp_path / "kinds.zip", tmp_path / "raw")
    with zipfile.ZipFile(tmp_path / "kinds.zip") as zipped:
        assert files_below(tmp_path / "raw") == {name: zipped.read(name) for name in zipped.namelist()}
        by_zipfile = [one.filename for one in zipped.infolist() if archive._small_content(zipped, one) is None]
    assert by_zipfile == ["c.jpg", "large"]


def test_a_changed_byte_of_a_file_that_is_not_compressed_is_found_by_its_checksum(tmp_path):
    with zipfile.ZipFile(tmp_path / "stored.zip", "w") as written:
        written.writestr("a.jpg", b"content")
    data = (tmp_path / "stored.zip").read_bytes()
    (tmp_path / "stored.zip").write_bytes(data.replace(b"content", b"c0ntent"))
    with pytest.raises(UserError, match=r"is damaged: 'a\.jpg' does not match its checksum"):
        archive.extract(tmp_path / "stored.zip", tmp_path / "raw")


def flip_a_byte(data):
    position = data.index(b"train/b.jpg") + 20
    return data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :]


# Members that are added to an archive, or a change of its bytes, and what is said of it.
REFUSED = {
    "zip slip": ([("../x", b"1")], "unsafe path '../x'"),
    "zip slip inside": ([("a/../../x", b"1")], "unsafe path"),
    "absolute": ([("/etc/x", b"1")], "unsafe path"),
    "drive": ([("C:x", b"1")], "unsafe path"),
    "backslash": ([("..\\x", b"1")], "unsafe path"),
    "link": ([member("external_attr", (stat.S_IFLNK | 0o777) << 16)], "link, special or encrypted file 'link'"),
    "newline": ([("a\nb", b"1")], "unsafe path"),
    "NUL": ([member("filename", "train/a\0jpg")], "unsafe path"),  # ZipInfo() would cut it
    "too long": ([("a" * 300, b"1")], "File name too long"),
    "file and folder": ([("a", b"1"), ("a/b", b"2")], "File exists"),
    "truncated": (lambda data: data[: len(data) // 2], "no whole zip file: its .* bytes begin with b.PK"),
    "empty": (lambda data: b"", "no whole zip file: its 0 bytes begin"),
    "web page": (lambda data: b"<!DOCTYPE html><title>Login</title>", "no whole zip file: .* begin with b'<!DOC"),
    "json": (lambda data: b'{"code": 403}', "no whole zip file: its 13 bytes begin"),
    "flipped byte": (flip_a_byte, "damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsafe_or_damaged_archive_is_refused_as_a_whole(tmp_path, name):
    change, message = REFUSED[name]
    path = write_zip(tmp_path / "evil.zip", [*FILES.items(), *([] if callable(change) else change)])
    if callable(change):
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=message):
        archive.extract(path, tmp_path / "raw")
    assert [p.name for p in tmp_path.iterdir()] == ["evil.zip"]


def test_a_disk_that_is_full_before_or_while_it_is_unpacked_keeps_only_the_archive(tmp_path, valid_zip, monkeypatch):
    with largest_file(5_000), pytest.raises(UserError, match="could not be unpacked into"):
        archive.extract(valid_zip, tmp_path / "raw")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(UserError, match=r"valid.zip needs 11.1 kB more than are free in .*: free disk space"):
        archive.extract(valid_zip, tmp_path / "raw")
    assert [p.name for p in tmp_path.iterdir()] == ["valid.zip"]


def test_a_folder_that_is_not_empty_is_never_overwritten(tmp_path, valid_zip):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "mine").write_text("mine")
    with pytest.raises(UserError, match="not an empty folder"):
        archive.extract(valid_zip, tmp_path / "raw")
    assert files_below(tmp_path / "raw") == {"mine": b"mine"}


def test_names_that_a_file_system_takes_for_one_never_replace_each_other(tmp_path, monkeypatch):
    path = write_zip(tmp_path / "twins.zip", [("a/X", b"1"), ("a/x", b"2")])
    archive.extract(path, tmp_path / "linux")
    assert files_below(tmp_path / "linux") == {"a/X": b"1", "a/x": b"2"}
    without_case = lambda name, *mode: Path(name.lower()).open(*mode)  # noqa: E731, SIM115  as on macOS
    monkeypatch.setattr(archive, "open", without_case, raising=False)
    with pytest.raises(UserError, match=r"could not be unpacked into .* \(File exists\)"):
        archive.extract(path, tmp_path / "macos")
