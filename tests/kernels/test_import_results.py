"""What the request for a submission from a notebook depends on, and how a submission and fold models are imported."""

import hashlib
from pathlib import Path

import pandas as pd
import pytest
from builders import competition, ledger_entry, params, run_of

from competition.config.errors import UserError
from competition.files.manifest import read_record, write_manifest
from competition.kaggle.submit import KernelSubmission
from competition.kernels import request as kernel_request
from competition.kernels.api import KernelVersion
from competition.kernels.import_results import LEDGER, SUBMISSION, ImportTarget, fold_model_of_folder, import_submission
from competition.prepare.prepared import Prepared
from competition.submission.ledger import append, read
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.runs import Run
from competition.workspace.workspace import Workspace

CSV = b"id,label\na,1\n"
DIGEST = hashlib.sha256(CSV).hexdigest()
PUSHED = KernelVersion("ada", "goldfold-digits", 3, "https://www.kaggle.com/code/ada/goldfold-digits")

PREPARED = Prepared(Path("data"), competition(name="x", metric="macro_f1"), pd.DataFrame(), "d")


def write_fold_model(run, fold, weights):
    manifest = fold_manifest_path(run, fold)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.with_name("weights.npz").write_bytes(weights)
    write_manifest(manifest, {}, [manifest.with_name("weights.npz")], {}, {})


def write_kernel_output(folder, content):
    """Write the output of a kernel: a submission file and a ledger with the entry of CSV."""
    folder.mkdir()
    (folder / SUBMISSION).write_bytes(content)
    append(folder / LEDGER, ledger_entry(digest=DIGEST, file="there.csv", competition="digits"))


def import_target(folder):
    workspace = Workspace(folder / "work" / "digits", params(), loaded=PREPARED)
    return ImportTarget(workspace, folder / "submissions", lambda line: None)


def test_the_submission_its_ledger_entry_and_its_kernel_version_are_imported_and_no_other_submission(tmp_path):
    write_kernel_output(tmp_path / "other", b"id,label\na,2\n")
    with pytest.raises(UserError, match="is not in its ledger"):
        import_submission(import_target(tmp_path), PUSHED, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    write_kernel_output(tmp_path / "output", CSV)
    import_submission(import_target(tmp_path), PUSHED, tmp_path / "output")
    (entry,) = read(tmp_path / "submissions" / "ledger.jsonl").entries
    assert (tmp_path / "submissions" / entry.file).read_bytes() == CSV
    made = read_record(tmp_path / "work/digits/kernel/submission.json", KernelSubmission)
    assert (made.kernel, made.version, made.file) == ("ada/goldfold-digits", 3, "submission.csv")
    assert made.digest == entry.digest == DIGEST


def test_another_model_or_blend_setting_changes_the_submission_request(tmp_path):
    member = params().members["cnn"]
    run = Run("cnn", member, 2, {}, "", tmp_path / "members" / "cnn" / "0123456789ab", {}, "cnn")

    def digest(changes=""):
        local_params = params(f"prepare.folds=2 {changes}")
        return kernel_request.submission_request_digest({name: [run] for name in local_params.members}, local_params)

    for fold in range(2):
        write_fold_model(run, fold, b"one")
    first = digest()
    assert digest("kaggle.max_attempts=2 device.retries=1 blend.name=mine") == first
    assert digest("blend.rounds=3") != first and digest("competition.metric=accuracy") != first
    write_fold_model(run, 1, b"other")
    assert digest() != first


def test_a_fold_model_is_found_by_member_run_and_fold(tmp_path: Path) -> None:
    target = import_target(tmp_path)
    run = run_of(target.workspace.folder, PREPARED, params(), "cnn")

    def of(result_folder: str) -> tuple[str, object] | None:
        fold_model = fold_model_of_folder(target, result_folder)
        return (fold_model[0].digest, fold_model[1]) if fold_model else None

    folder = f"work/x/members/cnn/{run.folder.name}"
    assert of(f"{folder}/fold3") == (run.digest, 3)
    assert of(f"{folder}/without/1-2") == (run.digest, (1, 2))
    assert of("work/x/members/cnn/0123456789ab/fold3") == (run.digest, 3)  # trained with other parameters
    for other in (f"{folder}/fold3/views/0123456789ab", "work/x/members/cnn/fold3", "work/x/tune/cnn/0123456789ab"):
        assert of(other) is None
    assert of("work/x/members/absent/0123456789ab/fold3") is None
