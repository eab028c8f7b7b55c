"""`make download train predict`: complete, repeated, from scratch, killed, and after every kind of change."""

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stages import FEWER_DIGITS, MAIN_JOB, Workspace, new_workspace

from competition.config.errors import UserError
from competition.config.params_file import load_params
from competition.ensemble.chain import Chain
from competition.ensemble.predictions import ViewPredictions, load_scores
from competition.workspace.workspace import Workspace as LibraryWorkspace
from pipelines.execution.selection import selected_folds, selected_members
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job
from pipelines.terminal.stage import run_stage

MEMBERS, FOLDS = ("slim", "wide"), range(3)


def ids_of(workspace: Workspace, part: str) -> list[str]:
    index = pd.read_csv(workspace.work / "data" / "index.csv", dtype=str, keep_default_na=False)
    return index.loc[index["part"] == part, "id"].tolist()


def ledger(workspace: Workspace) -> list[dict[str, object]]:
    return [json.loads(line) for line in (workspace.submissions / "ledger.jsonl").read_text().splitlines()]


def test_every_row_has_one_prediction(finished: Workspace) -> None:
    train, test = ids_of(finished, "train"), ids_of(finished, "test")
    assert len(train) == 450 and len(test) == 150  # neither divides by the batches of 32 and 100
    for member in MEMBERS:
        views = [finished.views(member, fold) for fold in FOLDS]
        oof = [ViewPredictions.load(folder / "oof.npz") for folder in views]
        assert sorted(name for fold in oof for name in fold.ids) == sorted(train)
        for folder in views:
            assert ViewPredictions.load(folder / "test.npz").ids.tolist() == test
    assert sorted(load_scores(finished.blend / "test.npz")[0]) == sorted(test)


def test_the_submission_has_the_rows_of_the_sample_in_its_order(finished: Workspace) -> None:
    sample = pd.read_csv(finished.work / "data" / "sample_submission.csv", dtype=str)
    (file,) = finished.submissions.glob("*.csv")
    written = pd.read_csv(file, dtype=str)
    assert written["id"].tolist() == sample["id"].tolist()
    assert set(written["label"]) <= set(map(str, range(10)))
    (line,) = ledger(finished)
    assert line["file"] == file.name and line["digest"].startswith(file.stem)
    assert line["oof_rows"] == len(ids_of(finished, "train")) and line["test_rows"] == len(sample)
    assert line["partial"] == "" and line["members"] == list(MEMBERS)
    assert line["honest_score"] > 0.4 and line["standard_error"] > 0  # chance is 0.1


def test_in_a_second_run_everything_is_current(workspace: Workspace) -> None:
    """test_light_commands.py has the packages that these stages then import."""
    workspace.params.write_text(workspace.params.read_text() + "\n# a comment changes nothing\n")
    before = workspace.files()
    for stage in MAIN_JOB:
        output = workspace.do(stage)
        assert stage == "tune" or "current" in output, stage
        assert "made again" not in output
    assert workspace.files() == before


@pytest.fixture(scope="module")
def interrupted(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A second run from scratch: stopped by SIGTERM in the first fold model, killed in the second, continued each time."""
    workspace = new_workspace(tmp_path_factory.mktemp("interrupted"))
    workspace.do_in_one_process("download", "prepare", "resolve", code=FEWER_DIGITS)
    stopped = workspace.stopped(signal.SIGTERM, "members/slim/*/fold0/checkpoints/*.json", "train")
    assert stopped.code == 143, stopped
    assert "resumes from it" in stopped.out
    assert any(workspace.work.glob("members/slim/*/fold0/checkpoints/*.json")) and workspace.weights() == {}
    killed = workspace.stopped(signal.SIGKILL, "members/slim/*/fold1/checkpoints/*.json", "train")
    assert killed.code == -signal.SIGKILL, killed
    assert list(workspace.weights()) == ["slim/fold0"]
    weights = workspace.fold("slim", 0) / "weights.npz"
    before = weights.stat().st_mtime_ns
    for stage in ("train", "predict", "blend"):
        workspace.do(stage)
    assert weights.stat().st_mtime_ns == before, "a finished fold model was trained again"
    return workspace


def test_a_run_that_was_stopped_and_killed_ends_with_the_same_weights(finished, interrupted) -> None:
    assert interrupted.weights() == finished.weights()
    assert len(finished.weights()) == len(set(finished.weights().values())) == 6
    for file in finished.work.glob("members/*/*/fold*/history.csv"):
        assert (interrupted.work / file.relative_to(finished.work)).read_bytes() == file.read_bytes()
    assert not list(interrupted.work.rglob("checkpoints")) and not list(interrupted.work.glob("members/**/.*"))


def test_the_submission_is_the_same_whether_stages_share_a_process_or_are_killed_and_continued(finished, interrupted):
    assert interrupted.submission() == finished.submission()
    for file in finished.work.glob("members/**/*.npz"):
        with np.load(file) as one_process, np.load(interrupted.work / file.relative_to(finished.work)) as several:
            assert one_process.files == several.files
            for name in one_process.files:
                np.testing.assert_array_equal(one_process[name], several[name], err_msg=str(file))


def test_a_network_that_was_trained_predicts_without_being_built_again(workspace: Workspace) -> None:
    shutil.rmtree(workspace.fold("slim", 0))
    code = """
from competition.training import trainer
real = trainer.engine_of
trainer.engine_of = lambda *arguments: (print("a network is built"), real(*arguments))[1]
"""
    output = workspace.do_in_one_process("train", "predict", code=code)
    assert "train slim fold 0" in output and "predict slim: on " in output
    assert output.count("a network is built") == 1


def test_force_replaces_the_selected_fold_model_alone_which_stays_in_use_if_that_is_killed(
    workspace: Workspace,
) -> None:
    before, old = workspace.files(), workspace.weights()
    forced = ("train", "--member", "slim", "--fold", "0", "--force")
    killed = workspace.stopped(signal.SIGKILL, "members/slim/*/again/fold0/checkpoints/*.json", *forced)
    assert killed.code == -signal.SIGKILL, killed
    assert "train slim: folds 0, 1, 2 current" in workspace.do("train")
    assert "current" in workspace.do("predict") and "blend: current" in workspace.do("blend")
    after = workspace.files()
    assert {path: after[path] for path in before} == before
    assert "made again (FORCE=1)" in workspace.do(*forced)  # it continues from the checkpoint
    assert not list(workspace.work.glob("members/slim/*/again"))
    changed = {Path(path).parent for path, state in workspace.files().items() if state != before.get(path)}
    assert changed == {workspace.fold("slim", 0).relative_to(workspace.folder)} and workspace.weights() == old
    assert "current" in workspace.do("predict")  # equal weights, so their predictions are kept


def test_a_missing_fold_is_named_with_its_command_and_a_partial_submission_is_marked(workspace: Workspace) -> None:
    shutil.rmtree(workspace.fold("wide", 2))
    error = workspace.refused("predict")
    assert "member wide lacks fold 2 (not trained)" in error and "`make train MEMBER=wide FOLD=2`" in error
    assert "ALLOW_PARTIAL=1" in error
    assert "wide fold 2" in workspace.refused("blend")
    workspace.do("predict", "--allow-partial")
    workspace.do("blend", "--allow-partial")
    (file,) = workspace.submissions.glob("*-partial2of3.csv")
    line = ledger(workspace)[-1]
    assert (line["partial"], line["file"]) == ("2of3", file.name)
    assert line["test_rows"] == len(ids_of(workspace, "test"))


def test_a_damaged_fold_model_is_reported(workspace: Workspace) -> None:
    weights = workspace.fold("slim", 0) / "weights.npz"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert "fold 0 (its files were damaged)" in workspace.refused("predict")


def test_changed_views_repeat_predictions_but_not_training(workspace: Workspace) -> None:
    sets, before = "predict.views=[identity]", workspace.files()
    assert "made again" not in workspace.do("train", sets=sets)
    workspace.do("predict", sets=sets)
    assert "blend: current" not in workspace.do("blend", sets=sets)
    after = workspace.files()
    changed = {path for path in before if after[path] != before[path]}
    assert {Path(path).name for path in changed} <= {"ledger.jsonl", "newest.txt"}  # nothing else is replaced
    added = after.keys() - before.keys()
    assert all(any(part in path for part in ("/views/", "/blend/", "/blends/", "submissions/")) for path in added)
    folders = (workspace.fold("slim", 0) / "views").iterdir()
    assert {ViewPredictions.load(folder / "test.npz").views for folder in folders} == {
        ("identity", "shift_up"), ("identity",),
    }  # fmt: skip
    assert "current" in workspace.do("predict") and "blend: current" in workspace.do("blend")
    assert {path for path, state in workspace.files().items() if after.get(path) != state} == {
        "work/small/blend/newest.txt"
    }


def test_a_member_has_views_of_its_own_and_is_not_trained_again_for_them(workspace: Workspace) -> None:
    sets = "members.slim.views=[identity]"
    before = workspace.weights()
    assert "made again" not in workspace.do("train", sets=sets)
    output = workspace.do("predict", sets=sets)
    assert "predict wide: 3 of 3 fold models current" in output and "1 view of 3 fold models" in output
    workspace.do("blend", sets=sets)
    assert set(Chain.load(workspace.blend / "chain.json").policies["slim"]) == {"identity"}
    assert workspace.weights() == before
    refused = workspace.refused("predict", sets="members.slim.views=[shift_up]")
    assert "members.slim.views: expected 'identity' among the views" in refused


def blended(workspace: Workspace, sets: str = "") -> str:
    """Name of the submission that `make blend` has made or confirmed."""
    (name,) = re.findall(r"submission: .*?(\w+\.csv)", workspace.do("blend", sets=sets))
    return str(name)


def test_grade_and_report_take_the_blend_of_the_members_that_the_parameters_name(workspace: Workspace) -> None:
    sets = "blend.members=[slim]"
    both, slim = blended(workspace), blended(workspace, sets)
    assert both != slim and f"grade: {both}: " in workspace.do("grade")
    assert workspace.do("submissions").count("graded here") == 1
    output = workspace.do("grade", sets=sets)
    assert f"grade: {slim}: " in output and "The blend " not in output
    for file, named in ((both, ""), (slim, sets)):
        assert "The blend " not in workspace.do("report", sets=named)
        assert f"submission {file}" in (workspace.work / "report.html").read_text()
    for folder in workspace.work.glob("blend/*/"):
        if len(json.loads((folder / "manifest.json").read_text())["depends"]["predictions"]) == 2:
            shutil.rmtree(folder)
    text = "The blend is of slim, without wide; `make train predict` includes it."
    assert text in workspace.do("report")
    assert f"grade: {slim} is not of the current parameters. {text}\n" in workspace.do("grade")


def test_grade_takes_the_blend_of_the_current_parameters_and_names_a_newer_one(workspace: Workspace) -> None:
    plain, sets = blended(workspace, ""), "policy.method=mean"
    best = blended(workspace, sets)
    output = workspace.do("grade")
    assert (
        f"grade: {plain} is of the current parameters; {best}, of others, was made later (FILE={best[:8]})\n" in output
    )
    assert f"grade: {plain}: public" in output
    for arguments, named in (((), sets), (("--file", best), "")):  # both name whose blend it is
        output = workspace.do("grade", *arguments, sets=named)
        assert f"grade: {best}: public" in output and "current parameters" not in output
    (line,) = re.findall(
        r"^grade: .* is not of the current parameters\. .*$", workspace.do("grade", sets="blend.methods=[equal]"), re.M
    )
    assert "The blend was made with other parameters (blend.methods: " in line
    blended(workspace, "")


def test_a_submission_is_not_graded_by_another_metric_than_its_honest_score(workspace: Workspace) -> None:
    sets = "competition.metric=accuracy blend.members=[slim]"  # another submission than that by macro_f1
    name, before = blended(workspace, sets), ledger(workspace)
    refused = workspace.refused("grade", "--file", name)
    assert (
        f"{name} was blended by accuracy, and competition.metric is macro_f1; `make blend` makes the blend by"
        in refused
    )
    assert ledger(workspace) == before  # the solution was not opened
    assert f"grade: {name}: " in workspace.do("grade", "--file", name, sets=sets)
    assert json.loads((workspace.work / "grades.json").read_text())[name].keys() == {"accuracy"}
    file = blended(workspace)
    workspace.do("grade")
    line = next(line for line in reversed(ledger(workspace)) if line.get("file") == file and line["kind"] == "entry")
    with (workspace.submissions / "ledger.jsonl").open("a") as stream:  # as if accuracy had given the same submission
        stream.write(json.dumps(line | {"metric": "accuracy", "honest_score": 0.99}) + "\n")
    workspace.do("report")
    page = (workspace.work / "report.html").read_text()
    assert "private, make grade" in page and "0.99000" not in page


def test_a_deleted_submission_is_written_again(workspace: Workspace) -> None:
    content = workspace.submission()
    next(workspace.submissions.glob("*.csv")).unlink()
    workspace.do("blend")
    assert workspace.submission() == content


def test_two_processes_never_write_the_same_result(workspace: Workspace) -> None:
    from filelock import FileLock

    with FileLock(workspace.blend / "manifest.lock"):
        assert "is in use by another run" in workspace.refused("blend", "--force")
    workspace.do("blend", "--force")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fold": "3"}, "FOLD=3: folds are whole numbers from 0 to 2"),
        ({"fold": "-1"}, "FOLD=-1: folds are whole numbers from 0 to 2"),
        ({"fold": "0,,1"}, "FOLD=0,,1: folds are whole numbers"),
        ({"member": "wid"}, "MEMBER=wid: no such member; the members are slim, wide"),
    ],
)
def test_a_wrong_member_or_fold_is_an_error(tmp_path: Path, given: dict[str, str], message: str) -> None:
    params = load_params(new_workspace(tmp_path).params)
    job = Job(LibraryWorkspace(tmp_path, params), Options(**given), tmp_path)
    with pytest.raises(UserError, match=re.escape(message)):
        assert selected_members(job) and selected_folds(job)


def test_data_that_were_prepared_with_other_parameters_are_refused(finished: Workspace) -> None:
    error = finished.refused("train", sets="prepare.folds=2")
    assert "the data were prepared with other parameters (prepare.folds: 3 -> 2); " in error
    assert '`make download SET="prepare.folds=2"` prepares' in error


def test_a_wrong_parameter_is_one_sentence_and_writes_nothing(tmp_path: Path) -> None:
    workspace = new_workspace(tmp_path)
    assert workspace.refused("download", sets="train.epoch=3") == (
        "goldfold: SET train.epoch: unknown key; did you mean 'epochs'?\n"
    )
    assert not (tmp_path / "work").exists()


def test_debug_shows_the_traceback_of_a_user_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(params=new_workspace(tmp_path).params, work=tmp_path / "work", sets="train.epoch=3", debug=True)
    with pytest.raises(SystemExit) as ended:
        run_stage("pipelines.main_job.download", "download", options, "", {})
    errors = capsys.readouterr().err
    assert ended.value.code == 1 and "Traceback" in errors and "did you mean 'epochs'?" in errors.splitlines()[-1]


def test_a_kill_before_the_manifest_costs_no_training_step(finished: Workspace, workspace: Workspace) -> None:
    shutil.rmtree(workspace.work / "members")
    code = """
import os, signal
from pipelines.terminal import runner
runner.write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = workspace.run("train", "--member", "slim", "--fold", "0", code=code)
    assert killed.code == -signal.SIGKILL, killed
    (newest, _) = sorted(workspace.work.glob("members/slim/*/fold0/checkpoints/*.json"), reverse=True)
    assert len(json.loads(newest.read_text())["history"]) == 4  # all epochs
    workspace.do("train", "--member", "slim", "--fold", "0")
    assert workspace.weights() == {"slim/fold0": finished.weights()["slim/fold0"]}
    assert not newest.parent.exists()


def test_checkpoints_that_a_kill_left_beside_a_finished_model_are_removed(workspace: Workspace) -> None:
    checkpoint = workspace.fold("slim", 1) / "checkpoints" / "step-00000020.json"
    checkpoint.parent.mkdir()
    checkpoint.write_text("{}")
    assert "current" in workspace.do("train")
    assert not checkpoint.parent.exists()


def test_tuning_on_several_logical_devices_works_with_an_empty_image_cache(workspace: Workspace) -> None:
    shutil.rmtree(workspace.work / "cache")
    sets = "tune.trials=1 train.epochs=1 tune.members=[slim] device.logical_devices=2"
    assert "best of 1 trial" in workspace.do("tune", sets=sets)
