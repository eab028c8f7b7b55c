import pytest

from competition.config.errors import UserError
from competition.storage import files


def test_a_finished_file_is_moved_to_its_name_and_never_written_there(tmp_path):
    path = tmp_path / "train" / "00.tfrec"
    with files.temporary_file(str(tmp_path)) as temporary:
        temporary.write_bytes(b"whole")
        inode = temporary.stat().st_ino
        assert list(tmp_path.iterdir()) == [temporary] and files.names(str(tmp_path)) == []
        files.publish(temporary, str(path))
    assert path.read_bytes() == b"whole" and path.stat().st_ino == inode
    assert files.names(str(tmp_path)) == ["train/00.tfrec"]


def test_an_error_while_writing_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), files.temporary_file(str(tmp_path)) as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(UserError, match=r"absent cannot be read: No such file or directory; check the path"):
        files.read_bytes(f"{tmp_path}/absent")
    (tmp_path / "a.json").write_text('{"digest": ')
    assert files.read_json(f"{tmp_path}/a.json") is None and files.read_json(f"{tmp_path}/b.json") is None
    assert files.digest(f"{tmp_path}/b.json") is None
