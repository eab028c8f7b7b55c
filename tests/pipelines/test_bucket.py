"""`make bucket` between two machines and a bucket, which is a local folder here."""

import shutil
from pathlib import Path

import pytest
from builders import ROOT, files_below
from stages import Workspace, new_workspace

from competition.files.manifest import write_manifest

FOLD = "members/cnn/0123456789ab/fold0"


def machine(folder: Path) -> Workspace:
    text = f"extends: {ROOT}/params.yaml\ncompetition: {{name: small}}\nstorage: {{bucket: {folder.parent}/bucket}}\n"
    return new_workspace(folder, text)


def write_result(folder: Path, files: dict[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_manifest(folder / "manifest.json", {}, [folder / name for name in files], {}, {})


def write_data(folder: Path, version: str) -> None:
    write_result(folder, {"index.csv": f"index {version}", f"records/fold0-00-{version}.tfrec": f"images {version}"})


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Data of version 1, uploaded by the machine `home` and downloaded without records by the machine `away`."""
    write_data(machine(tmp_path / "home").work / "data", "1")
    assert "1 results uploaded" in machine(tmp_path / "home").do("bucket")
    assert "1 downloaded" in machine(tmp_path / "away").do("bucket")
    return tmp_path / "bucket" / "small"


def test_data_without_their_records_do_not_replace_those_of_the_bucket(bucket, tmp_path) -> None:
    home, away = machine(tmp_path / "home"), machine(tmp_path / "away")
    write_data(home.work / "data", "2")
    home.do("bucket", "--force")
    assert files_below(bucket) == files_below(home.work)  # the records of version 1 are gone
    write_result(away.work / FOLD, {"weights.npz": "weights"})
    output = away.do("bucket", "--force")
    assert "bucket: data was not uploaded: its records are missing or damaged here" in output
    assert files_below(bucket / "data") == files_below(home.work / "data")
    assert (bucket / FOLD / "weights.npz").is_file()


def test_damaged_records_of_this_machine_leave_the_data_and_the_bucket_as_they_are(bucket, tmp_path) -> None:
    home, before = machine(tmp_path / "home"), files_below(bucket)
    for damage in (lambda file: file.write_text("image"), Path.unlink):
        damage(home.work / "data" / "records" / "fold0-00-1.tfrec")
        for force in ((), ("--force",)):
            assert "0 results uploaded" in home.do("bucket", *force)
    assert (files_below(bucket), (home.work / "data" / "manifest.json").is_file()) == (before, True)


def test_a_truncated_index_is_downloaded_again_and_one_of_the_bucket_is_refused(bucket, tmp_path) -> None:
    home, away = machine(tmp_path / "home"), machine(tmp_path / "away")
    index = away.work / "data" / "index.csv"
    index.write_text("index")
    assert "0 results uploaded" in (output := away.do("bucket", "--force")) and "1 downloaded" in output
    assert index.read_text() == "index 1"
    # Records of other data do not stay beside the index.
    write_data(home.work / "data", "2")
    (home.work / "data" / "index.csv").unlink()
    assert "1 downloaded" in home.do("bucket")
    assert index.read_text() == "index 1" and not (home.work / "data" / "records").exists()
    (bucket / "data" / "index.csv").write_text("index ?")
    assert "data is not what its manifest says" in machine(tmp_path / "new").refused("bucket")


def test_a_killed_upload_leaves_no_manifest_in_the_bucket(bucket, tmp_path) -> None:
    home = machine(tmp_path / "home")
    write_data(home.work / "data", "2")
    killed = "from competition.storage import files\nfiles.copy_files = lambda *_: 1 / 0"
    assert home.run("bucket", "--force", code=killed).code == 1
    assert "0 downloaded" in machine(tmp_path / "new").do("bucket")
    assert "1 results uploaded" in home.do("bucket") and files_below(bucket) == files_below(home.work)


def test_results_that_differ_from_the_bucket_are_overwritten_only_with_force(tmp_path) -> None:
    home, there = machine(tmp_path / "home"), tmp_path / "bucket" / "small"
    for work, text in ((home.work, "local"), (there, "remote")):
        write_result(work / FOLD, {"weights.npz": text})
    output, files = home.do("bucket"), [work / FOLD / "weights.npz" for work in (home.work, there)]
    assert f"1 results differ and were left unchanged on both sides ({FOLD})" in output
    assert [file.read_text() for file in files] == ["local", "remote"]
    home.do("bucket", "--force")
    assert [file.read_text() for file in files] == ["local", "local"]
