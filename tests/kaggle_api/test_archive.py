import signal
import stat
import subprocess
import sys
import zipfile
from collections import namedtuple

import pytest

from competition.config.errors import UserError
from competition.kaggle import archive

FILES = {"train/a.jpg": b"a" * 1000, "train/b.jpg": bytes(range(256)) * 40, "sample_submission.csv": b"id,label\n"}


def make(path, members):
    """members: (name or ZipInfo, bytes) pairs."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in members:
            zipped.writestr(name, data)
    return path


@pytest.fixture
def good(tmp_path):
    return make(tmp_path / "good.zip", FILES.items())


def link(name="link", target=b"/etc/passwd"):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, target


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_valid_archive_is_unpacked_completely(tmp_path, good):
    sizes = {name: len(data) for name, data in FILES.items()}
    seen = []
    verified = archive.verify(good, sizes, 200, lambda done, total: seen.append((done, total)))
    assert verified.files == sizes
    assert seen[-1] == (sum(sizes.values()), sum(sizes.values()))
    (tmp_path / "raw").mkdir()  # empty is as good as absent
    assert archive.extract(good, tmp_path / "raw", 200) == list(FILES)
    assert tree(tmp_path / "raw") == FILES
    assert {p.name for p in tmp_path.iterdir()} == {"good.zip", "raw"}


UNSAFE = {
    "zip slip": ([("../x", b"1")], "unsafe path '../x'"),
    "zip slip inside": ([("a/../../x", b"1")], "unsafe path"),
    "absolute": ([("/etc/x", b"1")], "unsafe path"),
    "drive": ([("C:x", b"1")], "unsafe path"),
    "backslash": ([("..\\x", b"1")], "unsafe path"),
    "link": ([link()], "link, special or encrypted file 'link'"),
    "twice": ([("a", b"1"), ("a", b"2")], "duplicate name"),
    "case": ([("a/X", b"1"), ("A/x", b"2")], "duplicate name"),
    "unicode forms": ([("\u00e9", b"1"), ("e\u0301", b"2")], "duplicate name"),
    "newline": ([("a\nb", b"1")], "unsafe path"),
    "too long": ([("a" * 300, b"1")], "name too long"),
    "file and folder": ([("a", b"1"), ("a/b", b"2")], "both file and folder"),
    "bomb": ([("zeros", bytes(100_000_000))], "zip bomb: 0.1 MB would unpack to 100.0 MB"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", UNSAFE)
def test_an_unsafe_archive_is_refused_as_a_whole(tmp_path, name):
    members, message = UNSAFE[name]
    path = make(tmp_path / "evil.zip", [("good.txt", b"good"), *members])
    before = {p.name for p in tmp_path.iterdir()}
    for act in (lambda: archive.extract(path, tmp_path / "raw", 200), lambda: archive.verify(path, {}, 200)):
        with pytest.raises(UserError, match="refused") as user_error:
            act()
        assert message in str(user_error.value)
    assert {p.name for p in tmp_path.iterdir()} == before


def test_a_name_with_a_nul_is_refused(tmp_path, good):
    data = good.read_bytes()
    good.write_bytes(data.replace(b"train/a.jpg", b"train/a\0jpg"))
    with pytest.raises(UserError, match="unsafe path"):
        archive.extract(good, tmp_path / "raw", 200)


def flip_a_byte(data):
    position = data.index(b"train/b.jpg") + 20
    return data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :]


DAMAGED = {
    "truncated": (lambda data: data[: len(data) // 2], "not a zip file: its end is missing"),
    "empty": (lambda data: b"", r"not a zip file: unknown content \(0 bytes\)"),
    "web page": (lambda data: b"<!DOCTYPE html><title>Login</title>", "not a zip file: it is a web page"),
    "json": (lambda data: b'{"code": 403}', "not a zip file: it is JSON"),
    "flipped byte": (flip_a_byte, "damaged"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_archive_is_refused_and_leaves_nothing(tmp_path, good, name):
    damage, message = DAMAGED[name]
    good.write_bytes(damage(good.read_bytes()))
    with pytest.raises(UserError, match=message):
        archive.verify(good, {}, 200)
    with pytest.raises(UserError, match=message):
        archive.extract(good, tmp_path / "raw", 200)
    assert [p.name for p in tmp_path.iterdir()] == ["good.zip"]


def test_names_and_sizes_must_match_the_listing(good):
    sizes = {name: len(data) for name, data in FILES.items()}
    with pytest.raises(UserError, match=r"lacks 1 listed files: test/c\.jpg"):
        archive.verify(good, {**sizes, "test/c.jpg": 5}, 200)
    with pytest.raises(UserError, match=r"has 1 files of another size: train/a.jpg \(1000 bytes, listed 999\)"):
        archive.verify(good, {**sizes, "train/a.jpg": 999}, 200)
    short = {"train/a.jpg": 1000}
    verified = archive.verify(good, short, 200)
    assert verified.files == short
    assert verified.notes[0].endswith("are not in the listing are left out: train/b.jpg, sample_submission.csv")
    verified = archive.verify(good, short, 200, only_listed=False)
    assert verified.files == sizes
    assert "that are not in the listing are unpacked as well" in verified.notes[0]
    assert "could not be compared" in archive.verify(good, {}, 200).notes[0]


def test_an_archive_larger_than_the_free_disk_space_is_refused_before_writing(tmp_path, good, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1, 1, 100))
    with pytest.raises(UserError, match=r"good.zip unpacks to 0.0 MB, .* free: free disk space"):
        archive.extract(good, tmp_path / "raw", 200)
    assert [p.name for p in tmp_path.iterdir()] == ["good.zip"]


def test_a_full_disk_leaves_only_the_archive(tmp_path, good):
    code = (
        "import resource, signal, sys, pathlib; from competition.kaggle import archive\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "archive.extract(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), 200)"
    )
    done = subprocess.run([sys.executable, "-c", code, good, tmp_path / "raw"], capture_output=True, text=True)
    assert "could not be unpacked into" in done.stderr.splitlines()[-1]
    assert [p.name for p in tmp_path.iterdir()] == ["good.zip"]


def test_after_a_kill_during_unpacking_the_next_run_succeeds(tmp_path):
    path = make(tmp_path / "big.zip", [(f"{n}.bin", bytes(1000)) for n in range(50)])
    code = (
        "import os, sys, pathlib, time; from competition.kaggle import archive\n"
        "def slow(done, total):\n    print(done, flush=True); time.sleep(0.05)\n"
        "archive.extract(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), 200, slow)"
    )
    running = subprocess.Popen([sys.executable, "-c", code, path, tmp_path / "raw"], stdout=subprocess.PIPE)
    for _ in range(5):
        running.stdout.readline()
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "raw").exists()
    archive.extract(path, tmp_path / "raw", 200)
    assert len(tree(tmp_path / "raw")) == 50
    assert {p.name for p in tmp_path.iterdir()} == {"big.zip", "raw"}


def test_a_folder_that_is_not_empty_is_never_overwritten(tmp_path, good):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "mine").write_text("mine")
    with pytest.raises(UserError, match="not an empty folder"):
        archive.extract(good, tmp_path / "raw", 200)
    assert tree(tmp_path / "raw") == {"mine": b"mine"}
