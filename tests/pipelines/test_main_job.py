"""`make download train predict`: complete, repeated, from scratch, killed, and after every kind of change."""

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock
from stages import MAIN_JOB, Workspace, new_workspace

from competition.config.validation import ARCHITECTURES
from competition.ensemble.chain import Chain
from competition.ensemble.predictions import ViewPredictions, load_scores
from competition.submission.ledger import count_solution_accesses
from pipelines.terminal.options import Options
from pipelines.terminal.stage import run_stage

MEMBERS, FOLDS = ("slim", "wide"), range(3)


def ids_of(workspace: Workspace, part: str) -> list[str]:
    index = pd.read_csv(workspace.work / "data" / "index.csv", dtype=str, keep_default_na=False)
    return index.loc[index["part"] == part, "id"].tolist()


def test_every_row_has_one_prediction(finished: Workspace) -> None:
    rows, test = ids_of(finished, "train"), ids_of(finished, "test")
    assert len(rows) == 450 and len(test) == 150  # neither divides by the batches of 32 and 100
    for member in MEMBERS:
        views = [finished.views(member, fold) for fold in FOLDS]
        oof = [ViewPredictions.load(folder / "oof.npz") for folder in views]
        assert sorted(name for fold in oof for name in fold.ids) == sorted(rows)
        for folder in views:
            assert ViewPredictions.load(folder / "test.npz").ids.tolist() == test
    assert sorted(load_scores(finished.blend / "test.npz")[0]) == sorted(test)
    # The submission has the rows of the sample in its order.
    sample = pd.read_csv(finished.work / "data" / "sample_submission.csv", dtype=str)
    (file,) = finished.submissions.glob("*.csv")
    written = pd.read_csv(file, dtype=str)
    assert written["id"].tolist() == sample["id"].tolist() and set(written["label"]) <= set(map(str, range(10)))
    (line,) = finished.ledger()
    assert line["file"] == file.name and line["digest"].startswith(file.stem)
    assert line["oof_rows"] == len(rows) and line["test_rows"] == len(sample)
    assert line["partial"] == "" and line["members"] == list(MEMBERS)
    assert line["honest_score"] > 0.4 and line["standard_error"] > 0  # chance is 0.1


def test_in_a_second_run_everything_is_current(workspace: Workspace) -> None:
    """test_light_commands.py has the packages that these stages then import."""
    workspace.params.write_text(workspace.params.read_text() + "\n# a comment changes nothing\n")
    before = workspace.files()
    output = workspace.here(*MAIN_JOB)
    for stage in ("download", "prepare", "train slim", "train wide", "predict slim", "predict wide", "blend"):
        assert re.search(f"^{stage}: .*current", output, re.MULTILINE), output
    assert "made again" not in output and workspace.files() == before


def test_a_run_that_was_stopped_and_killed_ends_with_the_same_results(finished: Workspace, workspace) -> None:
    """Stopped by SIGTERM in the first fold model, killed in the second; each continues, in a process for each stage."""
    for folder in (workspace.submissions, *(workspace.work / name for name in ("members", "blend", "blends"))):
        shutil.rmtree(folder)
    stopped = workspace.stopped(signal.SIGTERM, "members/slim/*/fold0/checkpoints/*.json", "train")
    assert stopped.code == 143 and "resumes from it" in stopped.out, stopped
    assert any(workspace.work.glob("members/slim/*/fold0/checkpoints/*.json")) and workspace.weights() == {}
    killed = workspace.stopped(signal.SIGKILL, "members/slim/*/fold1/checkpoints/*.json", "train")
    assert killed.code == -signal.SIGKILL and list(workspace.weights()) == ["slim/fold0"], killed
    weights = workspace.fold("slim", 0) / "weights.npz"
    before = weights.stat().st_mtime_ns
    for stage in ("train", "predict", "blend"):
        workspace.do(stage)
    assert weights.stat().st_mtime_ns == before, "a finished fold model was trained again"
    assert workspace.weights() == finished.weights() and workspace.submission() == finished.submission()
    assert len(set(finished.weights().values())) == 6
    assert not list(workspace.work.rglob("checkpoints")) and not list(workspace.work.glob("members/**/.*"))
    for file in finished.work.glob("members/*/*/fold*/history.csv"):
        assert (workspace.work / file.relative_to(finished.work)).read_bytes() == file.read_bytes()
    for file in finished.work.glob("members/**/*.npz"):
        with np.load(file) as one_process, np.load(workspace.work / file.relative_to(finished.work)) as several:
            assert one_process.files == several.files
            for name in one_process.files:
                np.testing.assert_array_equal(one_process[name], several[name], err_msg=str(file))


def test_force_replaces_the_selected_fold_model_which_stays_in_use_until_then(workspace: Workspace) -> None:
    before, old = workspace.files(), workspace.weights()
    forced = ("train", "--member", "slim", "--fold", "0", "--force")
    killed = workspace.stopped(signal.SIGKILL, "members/slim/*/again/fold0/checkpoints/*.json", *forced)
    assert killed.code == -signal.SIGKILL, killed
    output = workspace.here("train", "predict", "blend")
    assert "train slim: folds 0, 1, 2 current" in output and "blend: current" in output
    after = workspace.files()
    assert {path: after[path] for path in before} == before
    assert "made again (FORCE=1)" in workspace.do(*forced)  # it continues from the checkpoint
    assert not list(workspace.work.glob("members/slim/*/again"))
    changed = {Path(path).parent for path, state in workspace.files().items() if state != before.get(path)}
    assert changed == {workspace.fold("slim", 0).relative_to(workspace.folder)} and workspace.weights() == old
    assert "current" in workspace.here("predict")  # equal weights, so their predictions are kept


def test_a_missing_fold_is_named_with_its_command_and_a_partial_submission_is_marked(workspace: Workspace) -> None:
    weights = workspace.fold("wide", 1) / "weights.npz"
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-9] + bytes([intact[-9] ^ 1]) + intact[-8:])
    shutil.rmtree(workspace.fold("wide", 2))
    assert "member wide lacks fold 1 (its files were damaged)" in workspace.refused_here("predict")
    weights.write_bytes(intact)
    error = workspace.refused_here("predict")
    assert "member wide lacks fold 2 (not trained)" in error and "`make train MEMBER=wide FOLD=2`" in error
    assert "ALLOW_PARTIAL=1" in error and "wide fold 2" in workspace.refused_here("blend")
    workspace.here("predict", "blend", allow_partial=True)
    (file,) = workspace.submissions.glob("*-partial2of3.csv")
    line = workspace.ledger()[-1]
    assert (line["partial"], line["file"]) == ("2of3", file.name)
    assert "The blend is partial; `make train predict` makes the complete one." in workspace.here("report")
    assert line["test_rows"] == len(ids_of(workspace, "test"))


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
    output = workspace.here("predict", "blend")  # those under the views before are still there
    assert output.count("3 of 3 fold models current") == 2 and "blend: current" in output
    refused = workspace.refused_here("predict", "members.slim.views=[shift_up]")
    assert "members.slim.views: expected 'identity' among the views" in refused


def test_grade_and_report_take_the_blend_of_the_current_parameters_and_name_what_differs(workspace: Workspace) -> None:
    sets, (both,) = "blend.members=[slim]", workspace.submissions.glob("*.csv")
    workspace.here("blend", sets=sets)
    (slim,) = set(workspace.submissions.glob("*.csv")) - {both}
    output = workspace.here("grade")
    assert f"grade: {both.name}: public" in output
    later = f"{both.name} is of the current parameters; {slim.name}, of others, was made later (FILE={slim.name[:8]})"
    assert later in output
    workspace.here("blend")  # confirmed again, which makes it no later
    for options in ({"sets": sets}, {"file": slim.name}):  # both name whose blend it is
        output = workspace.here("grade", **options)
        assert f"grade: {slim.name}: public" in output and "current parameters" not in output
    for file, named in ((both, ""), (slim, sets)):
        assert "The blend " not in workspace.here("report", sets=named)
        assert f"submission {file.name}" in workspace.page
    output = workspace.here("grade", sets="blend.methods=[equal]")
    assert "is not of the current parameters. The blend was made with other parameters (blend.methods: " in output
    for folder in workspace.work.glob("blend/*/"):
        if len(json.loads((folder / "manifest.json").read_text())["depends"]["predictions"]) == 2:
            shutil.rmtree(folder)
    assert "The blend is of slim, without wide; `make train predict` includes it." in workspace.here("report")


def test_a_submission_is_graded_by_the_metric_of_its_honest_score_and_only_if_that_scores_labels(workspace: Workspace):
    refused = workspace.refused_here("prepare", "competition.predicts=probabilities")
    assert "probabilities was asked for, digits takes label" in refused
    sets, old = "competition.metric=log_loss blend.members=[slim]", set(workspace.submissions.glob("*.csv"))
    output = workspace.do("blend", sets=sets)  # with the data that were there
    assert "log_loss scores probabilities, and submissions of small are labels" in output and "make grade" not in output
    (file,), before = set(workspace.submissions.glob("*.csv")) - old, workspace.ledger()
    refused = workspace.refused_here("grade", file=file.name)
    assert f"{file.name} was blended by log_loss, and competition.metric is macro_f1; `make blend`" in refused
    assert "the solution was not opened" in workspace.refused_here("grade", sets)
    assert workspace.ledger() == before
    assert count_solution_accesses(workspace.submissions / "ledger.jsonl", "small") == 0


def test_a_deleted_submission_is_written_again_unless_another_process_writes_the_result(workspace: Workspace) -> None:
    content = workspace.submission()
    next(workspace.submissions.glob("*.csv")).unlink()
    with FileLock(workspace.blend / "manifest.lock"):
        assert "is in use by another run" in workspace.refused("blend", "--force")
    workspace.here("blend")
    assert workspace.submission() == content


def test_a_wrong_member_or_fold_is_an_error(finished: Workspace) -> None:
    for given in ("3", "-1", "0,,1"):
        message = f"FOLD={given}: folds are whole numbers from 0 to 2"
        assert message in finished.refused_here("train", fold=given)
    message = "MEMBER=wid: no such member; the members are slim, wide"
    assert message in finished.refused_here("train", member="wid")


def test_data_prepared_for_another_task_are_refused_by_every_stage(workspace: Workspace) -> None:
    for sets, change in (
        ("prepare.folds=2", "prepare.folds: 3 -> 2"),
        ("competition.metric=quadratic_kappa", "competition.target: single -> ordinal"),
        ("competition.target=ordinal", "competition.target: single -> ordinal"),
        ("competition.label_column=other", "competition.label_column:  -> other"),
    ):
        message = f"the data were prepared with other parameters ({change}); `make download` prepares them again"
        assert all(message in workspace.refused_here(stage, sets) for stage in ("train", "blend", "report"))
    same = "competition.source=/of/another/machine competition.target=single"  # stated, no longer detected
    assert "blend: current" in workspace.here("blend", sets=same)


@pytest.mark.parametrize("debug", [False, True])
def test_a_wrong_parameter_is_one_sentence_or_with_debug_its_traceback(tmp_path: Path, capsys, debug: bool) -> None:
    options = Options(params=new_workspace(tmp_path).params, work=tmp_path / "work", sets="train.epoch=3", debug=debug)
    with pytest.raises(SystemExit) as ended:
        run_stage("pipelines.main_job.download", "download", options, "", {})
    *traceback, sentence = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and "SET train.epoch: unknown key; did you mean 'epochs'?" in sentence
    assert any("Traceback" in line for line in traceback) if debug else traceback == []
    assert not (tmp_path / "work").exists()


def test_every_wrong_name_is_found_before_anything_is_downloaded(tmp_path: Path) -> None:
    workspace = new_workspace(tmp_path)
    for override, message in (
        ("members.slim.architecture=MobileNett", "SET members.slim.architecture: .*; did you mean 'MobileNet'?"),
        ("members.slim.weights=absent.weights.h5", "members.slim.weights: absent.weights.h5 does not exist"),
        ("members.slim.architecture=MobileNetV2 members.slim.weights=imagenet", "slim.alpha: 0.25 .* exist for 0.35"),
        ("predict.views=[identity,flip_rl]", "predict.views: .*; did you mean 'flip_lr'?"),
        ("'train.augment={grayscale: 0.5}'", "train.augment: 'grayscale' is not known; did you mean 'greyscale'?"),
        ("tune.trials=1 'tune.search={architecture: {choices: [cnn, ResNet51]}}'", "tune.search: .*ResNet51"),
        ("'prepare.external={more: absent}'", "prepare.external.more: absent is not a folder"),
        ("prepare.group_by=column", "prepare.group_by: column was found .* set both"),
        ("blend.methods=[bagging]", "blend.methods: 'bagging' is not known; did you mean 'bagged'?"),
        ("decision.rules=[argmin]", "decision.rules: 'argmin' is not known; did you mean 'argmax'?"),
        ("competition.metric=macro_f", "competition.metric: 'macro_f' is not known; did you mean 'macro_f1'?"),
        ("competition.metric=zzz", "competition.metric: 'zzz' is not known; known are macro_f1, "),
    ):
        assert re.search(message.replace("?", r"\?"), workspace.refused_here("download", override)), override
    assert not list(tmp_path.rglob("raw*"))


def test_every_network_of_keras_is_known_without_importing_keras() -> None:
    import keras

    assert set(ARCHITECTURES) - {"cnn"} == {name for name in dir(keras.applications) if name[0].isupper()}
