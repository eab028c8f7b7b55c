"""Statements of docs/kaggle_and_tpu.md that no other test covers."""

import functools

from builders import ROOT, params
from stages import Workspace

from competition.files.manifest import write_manifest
from competition.kernels import request as kernel_request
from competition.storage import locations as storage
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.runs import Run
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.main_job import download
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job


def test_in_a_kaggle_notebook_the_attached_folder_is_used_without_a_download(tmp_path, monkeypatch) -> None:
    attached = tmp_path / "input" / "competitions" / "plants"
    attached.mkdir(parents=True)
    (attached / "sample_submission.csv").write_text("id,label\na,0\n")
    monkeypatch.setattr(storage, "find_inputs", functools.partial(storage.find_inputs, root=str(tmp_path / "input")))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    for credential in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"):  # a request to Kaggle would fail
        monkeypatch.delenv(credential, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    work = tmp_path / "work"
    work.mkdir()
    parameters = params("competition.name=x competition.adapter=flowers competition.slug=flowers")
    job = Job(LibraryWorkspace(work, parameters), Options(force=False, debug=False), tmp_path)
    download.run(job)
    assert (work / "raw" / "sample_submission.csv").read_text() == "id,label\na,0\n"
    assert f"download: {attached} is attached to this notebook; no download needed" in job.echoed


def test_only_unfinished_fold_models_with_a_checkpoint_are_sent_with_the_kernel(tmp_path) -> None:
    parameters = params("prepare.folds=2")
    run = Run("cnn", parameters.members["cnn"], 2, {}, "", tmp_path / "members" / "cnn" / "0123456789ab", {}, "cnn")
    for fold, name in enumerate(("checkpoints/1.json", "notes.json")):
        file = fold_manifest_path(run, fold).parent / name
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    result_folders = kernel_request.results_to_resume(tmp_path, parameters, {"cnn": [run]}, {"cnn": [0, 1]})
    assert [result_folder.split("/")[-1] for result_folder in result_folders] == ["fold0"]


def test_results_that_differ_from_the_bucket_are_overwritten_only_with_force(tmp_path) -> None:
    workspace = Workspace(tmp_path)
    workspace.params.write_text(f"extends: {ROOT}/params.yaml\ncompetition: {{name: small}}\n")
    sets = f"storage.bucket={tmp_path}/bucket"
    local_folder, bucket_folder = (
        folder / "members/cnn/0123456789ab/fold0" for folder in (workspace.work, tmp_path / "bucket" / "small")
    )
    for folder, text in ((local_folder, "local"), (bucket_folder, "remote")):
        folder.mkdir(parents=True)
        (folder / "weights.npz").write_text(text)
        write_manifest(folder / "manifest.json", {}, [folder / "weights.npz"], {}, {})
    output = workspace.do("bucket", sets=sets)
    assert "1 results differ and were left unchanged on both sides (members/cnn/0123456789ab/fold0)" in output
    assert [(folder / "weights.npz").read_text() for folder in (local_folder, bucket_folder)] == ["local", "remote"]
    workspace.do("bucket", "--force", sets=sets)
    assert [(folder / "weights.npz").read_text() for folder in (local_folder, bucket_folder)] == ["local", "local"]
