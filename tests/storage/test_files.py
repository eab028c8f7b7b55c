from pathlib import Path

import pytest

from competition.config.errors import UserError
from competition.storage import files


def test_a_finished_file_is_moved_to_its_name_and_an_unfinished_one_leaves_nothing(tmp_path):
    path = tmp_path / "train" / "00.tfrec"
    with files.temporary_file(str(tmp_path)) as temporary:
        temporary.write_bytes(b"whole")
        inode = temporary.stat().st_ino
        assert list(tmp_path.iterdir()) == [temporary] and files.names(str(tmp_path)) == []
        files.publish(temporary, str(path))
    assert path.read_bytes() == b"whole" and path.stat().st_ino == inode
    assert files.names(str(tmp_path)) == ["train/00.tfrec"]
    with pytest.raises(ZeroDivisionError), files.temporary_file(str(tmp_path)) as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [path]


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(UserError, match=r"absent cannot be read: No such file or directory; check the path"):
        files.read_bytes(f"{tmp_path}/absent")
    (tmp_path / "a.json").write_text('{"digest": ')
    assert files.read_json(f"{tmp_path}/a.json") is None and files.read_json(f"{tmp_path}/b.json") is None
    assert files.digest(f"{tmp_path}/b.json") is None


def test_a_folder_of_fsspec_is_written_listed_read_and_removed_like_a_local_one(tmp_path):
    pytest.importorskip("fsspec", reason="other addresses than gs:// need fsspec (goldfold[remote])")
    folder = f"memory://{tmp_path.name}"
    files.write_bytes(f"{folder}/run/weights.npz", b"weights")
    files.write_json(f"{folder}/run/manifest.json", {"complete": True})
    assert files.names(folder) == ["run/manifest.json", "run/weights.npz"]
    files.copy_files(folder, str(tmp_path / "copy"), files.names(folder))
    assert (tmp_path / "copy" / "run" / "weights.npz").read_bytes() == b"weights"
    with files.local_copy(f"{folder}/run/weights.npz") as path:
        assert Path(path).read_bytes() == b"weights"
    files.remove(f"{folder}/run/manifest.json")
    assert files.names(folder) == ["run/weights.npz"] and files.read_json(f"{folder}/run/manifest.json") is None
    with pytest.raises(UserError, match=r"run/absent cannot be read: .*absent; check the path and the credentials"):
        files.read_bytes(f"{folder}/run/absent")


def test_an_address_that_nothing_reads_is_refused_by_its_scheme():
    pytest.importorskip("fsspec", reason="other addresses than gs:// need fsspec (goldfold[remote])")
    with pytest.raises(UserError, match=r"xyz://a: no file system for xyz:// .*use a local path or gs://"):
        files.check_scheme("xyz://a")
    files.check_scheme("gs://bucket/folder")
    files.check_scheme("/a/local/folder")
