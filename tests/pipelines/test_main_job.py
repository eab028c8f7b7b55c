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
    output = workspace.do_in_one_process(*MAIN_JOB)
    for stage in ("download", "prepare", "train slim", "train wide", "predict slim", "predict wide", "blend"):
        assert re.search(f"^{stage}: .*current", output, re.MULTILINE), output
    assert "made again" not in output and workspace.files() == before


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


def test_force_replaces_the_selected_fold_model_alone_which_stays_in_use_if_that_is_killed(
    workspace: Workspace,
) -> None:
    before, old = workspace.files(), workspace.weights()
    forced = ("train", "--member", "slim", "--fold", "0", "--force")
    killed = workspace.stopped(signal.SIGKILL, "members/slim/*/again/fold0/checkpoints/*.json", *forced)
    assert killed.code == -signal.SIGKILL, killed
    output = workspace.do_in_one_process("train", "predict", "blend")
    assert "train slim: folds 0, 1, 2 current" in output and "blend: current" in output
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


def test_changed_views_of_a_member_repeat_its_predictions_but_no_training(workspace: Workspace) -> None:
    sets, before = "members.slim.views=[identity]", workspace.files()
    output = workspace.do_in_one_process("train", "predict", "blend", arguments=("--set", sets))
    assert "predict wide: 3 of 3 fold models current" in output and "1 view of 3 fold models" in output
    assert "blend: current" not in output
    assert set(Chain.load(workspace.blend / "chain.json").policies["slim"]) == {"identity"}
    after = workspace.files()
    changed = {path for path in before if after[path] != before[path]}
    assert {Path(path).name for path in changed} <= {"ledger.jsonl", "newest.txt"}  # nothing else is replaced
    added = after.keys() - before.keys()
    assert all(any(part in path for part in ("/views/", "/blend/", "/blends/", "submissions/")) for path in added)
    output = workspace.do_in_one_process("predict", "blend")  # those under the views before are still there
    assert output.count("3 of 3 fold models current") == 2 and "blend: current" in output
    refused = workspace.refused("predict", sets="members.slim.views=[shift_up]")
    assert "members.slim.views: expected 'identity' among the views" in refused


def blended(workspace: Workspace, sets: str = "") -> str:
    """Name of the submission that `make blend` has made or confirmed."""
    (name,) = re.findall(r"submission: .*?(\w+\.csv)", workspace.do("blend", sets=sets))
    return str(name)


def test_grade_and_report_take_the_blend_of_the_current_parameters_and_name_what_differs(workspace: Workspace) -> None:
    sets = "blend.members=[slim]"
    both, slim = blended(workspace), blended(workspace, sets)
    assert both != slim
    output = workspace.do("grade")
    assert f"grade: {both}: public" in output
    assert f"{both} is of the current parameters; {slim}, of others, was made later (FILE={slim[:8]})\n" in output
    assert blended(workspace) == both  # confirmed again, which makes it no later
    for arguments, named in (((), sets), (("--file", slim), "")):  # both name whose blend it is
        output = workspace.do("grade", *arguments, sets=named)
        assert f"grade: {slim}: public" in output and "current parameters" not in output
    for file, named in ((both, ""), (slim, sets)):
        assert "The blend " not in workspace.do("report", sets=named)
        assert f"submission {file}" in (workspace.work / "report.html").read_text()
    output = workspace.do("grade", sets="blend.methods=[equal]")
    assert "is not of the current parameters. The blend was made with other parameters (blend.methods: " in output
    for folder in workspace.work.glob("blend/*/"):
        if len(json.loads((folder / "manifest.json").read_text())["depends"]["predictions"]) == 2:
            shutil.rmtree(folder)
    assert "The blend is of slim, without wide; `make train predict` includes it." in workspace.do("report")


def test_a_submission_is_not_graded_by_another_metric_than_its_honest_score(workspace: Workspace) -> None:
    sets = "competition.metric=accuracy blend.members=[slim]"  # another submission than that by macro_f1
    name, before = blended(workspace, sets), ledger(workspace)
    refused = workspace.refused("grade", "--file", name)
    assert f"{name} was blended by accuracy, and competition.metric is macro_f1; `make blend`" in refused
    assert ledger(workspace) == before  # the solution was not opened
    assert f"grade: {name}: " in workspace.do("grade", "--file", name, sets=sets)
    assert json.loads((workspace.work / "grades.json").read_text())[name].keys() == {"accuracy"}


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
