"""Promises of docs/kaggle_and_tpu.md that no other test shows."""

import functools

from stages import Workspace
from world import ROOT, params

from competition.artifacts.dependencies import fold_model_path
from competition.artifacts.manifest import write_manifest
from competition.kernels import request as kernel_work
from competition.storage import locations as storage
from pipelines import download
from pipelines.runner import Job, Options


def test_in_a_kaggle_notebook_the_attached_folder_is_taken_and_nothing_is_fetched(tmp_path, monkeypatch) -> None:
    attached = tmp_path / "input" / "competitions" / "plants"
    attached.mkdir(parents=True)
    (attached / "sample_submission.csv").write_text("id,label\na,0\n")
    monkeypatch.setattr(storage, "find_inputs", functools.partial(storage.find_inputs, root=str(tmp_path / "input")))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    for credential in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"):  # asking Kaggle would be refused
        monkeypatch.delenv(credential, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    work = tmp_path / "work"
    work.mkdir()
    told = params("competition.name=x competition.adapter=flowers competition.slug=flowers")
    job = Job(told, (), Options(force=False, debug=False), work, tmp_path)
    download.run(job)
    assert (work / "raw" / "sample_submission.csv").read_text() == "id,label\na,0\n"
    assert f"download: {attached} is attached to this notebook; no download needed" in job.echoed


def test_an_unfinished_fold_model_goes_with_the_kernel_and_one_without_a_checkpoint_does_not(tmp_path) -> None:
    told = params("prepare.folds=2")
    for fold, name in enumerate(("checkpoints/1.json", "notes.json")):
        file = fold_model_path(tmp_path, "cnn", fold).parent / name
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    units = kernel_work.units_to_resume(tmp_path, told, told.members, {"cnn": [0, 1]})
    assert [unit.split("/")[-1] for unit in units] == ["fold0"]


def test_results_that_differ_from_the_buckets_stay_on_both_sides_until_they_are_forced(tmp_path) -> None:
    place = Workspace(tmp_path)
    place.params.write_text(f"extends: {ROOT}/params.yaml\ncompetition: {{name: small}}\n")
    sets = f"storage.bucket={tmp_path}/bucket"
    here, there = (folder / "members/cnn/fold0" for folder in (place.work, tmp_path / "bucket" / "small"))
    for folder, text in ((here, "mine"), (there, "theirs")):
        folder.mkdir(parents=True)
        (folder / "weights.npz").write_text(text)
        write_manifest(folder / "manifest.json", {}, [folder / "weights.npz"], {}, {})
    said = place.do("bucket", sets=sets)
    assert "1 results differ and were left unchanged on both sides (members/cnn/fold0)" in said
    assert [(folder / "weights.npz").read_text() for folder in (here, there)] == ["mine", "theirs"]
    place.do("bucket", "--force", sets=sets)
    assert [(folder / "weights.npz").read_text() for folder in (here, there)] == ["mine", "mine"]
