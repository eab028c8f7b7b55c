"""`make download train predict`: complete, repeated, from scratch, killed, and after every kind of change."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import ROOT
from filelock import FileLock
from PIL import Image
from stages import MAIN_JOB, Workspace, new_workspace

from competition.config.validation import ARCHITECTURES
from competition.ensemble.stored_predictions import ViewPredictions, load_scores
from competition.submission import ledger
from pipelines.terminal.hosts import Hosts
from pipelines.terminal.options import Options
from pipelines.terminal.stage import run_stage


def test_every_row_has_one_prediction(finished: Workspace) -> None:
    index = pd.read_csv(finished.work / "data" / "index.csv", dtype=str, keep_default_na=False)
    rows, test = (index.loc[index["part"] == part, "id"].tolist() for part in ("train", "test"))
    assert len(rows) == 450 and len(test) == 150  # neither divides by the batches of 32 and 100
    for member in ("slim", "wide"):
        views = [finished.views(member, fold) for fold in range(3)]
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
    assert line["partial"] == "" and line["members"] == ["slim", "wide"]
    assert line["honest_score"] > 0.4 and line["standard_error"] > 0  # chance is 0.1


def test_in_a_second_run_everything_is_current(workspace: Workspace) -> None:
    workspace.params.write_text(workspace.params.read_text() + "\n# a comment changes nothing\n")
    before = workspace.files()
    output = workspace.here(*MAIN_JOB)
    for stage in ("download", "prepare", "train slim", "train wide", "predict slim", "predict wide", "blend"):
        assert re.search(f"^{stage}: .*current", output, re.MULTILINE), output
    assert "made again" not in output and workspace.files() == before


def test_a_run_that_was_stopped_and_killed_ends_with_the_same_results(finished: Workspace, workspace) -> None:
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
    assert (line["partial"], line["file"], line["test_rows"]) == ("2of3", file.name, 150)
    assert "The blend is partial; `make train predict` makes the complete one." in workspace.here("report")
    shutil.rmtree(workspace.fold("wide", 1))
    error = workspace.refused_here("blend", allow_partial=True)
    assert "1 was found: `make train MEMBER=wide" in error and "trains the other folds of wide" in error
    shutil.rmtree(workspace.fold("wide", 0))
    assert "wide: no fold model has predicted, so it takes no part" in workspace.here("blend", allow_partial=True)
    unnamed = workspace.here("blend", sets="blend.members=[slim]")
    assert "wide: not among blend.members, so it takes no part" in unnamed
    shutil.rmtree(workspace.fold("slim", 0))
    words = "member slim lacks fold 0 (not trained); wide lacks 3 folds; `make train` trains them all"
    assert words in workspace.refused_here("predict")


def test_grade_and_report_take_the_blend_of_the_current_parameters_and_name_what_differs(workspace: Workspace) -> None:
    sets, (both,) = "blend.members=[slim]", workspace.submissions.glob("*.csv")
    workspace.here("blend", sets=sets)
    (slim,) = set(workspace.submissions.glob("*.csv")) - {both}
    output = workspace.here("grade")
    assert f"grade: {both.name}: public" in output
    score = workspace.ledger()[1]["honest_score"]
    newer = rf"^grade: {slim.name} \(honest macro_f1 {score:.4f} .*\) was recorded after {both.name}; `"
    assert re.search(newer, output, re.M)
    assert "nothing was sent: small is not on Kaggle" in workspace.here("submit")
    unknown = f"no submission of small in .* begins with ffff; there are {both.stem}, {slim.stem}"
    assert re.search(unknown, workspace.refused_here("grade", file="ffff"))
    workspace.here("blend")  # confirmed again, which makes it no later
    for options in ({"sets": sets}, {"file": slim.name}):  # both name whose blend it is
        output = workspace.here("grade", **options)
        assert f"grade: {slim.name}: public" in output and "current parameters" not in output
        assert "newer" not in output
    for file, named in ((both, ""), (slim, sets)):
        assert "The blend " not in workspace.here("report", sets=named)
        assert f"submission {file.name}" in workspace.page
    output = workspace.here("grade", sets="blend.methods=[equal]")
    assert "is not of the current parameters. The blend was made with other parameters (blend.methods: " in output
    for folder in workspace.work.glob("blend/*/"):
        if len(json.loads((folder / "manifest.json").read_text())["depends"]["predictions"]) == 2:
            shutil.rmtree(folder)
    assert re.search(r"The blend has other members, .* than \S+ has now: wide\. ", workspace.here("report"))


def test_a_submission_is_graded_by_the_metric_of_its_honest_score_and_only_if_that_scores_labels(workspace: Workspace):
    refused = workspace.refused_here("prepare", "competition.predicts=probabilities")
    assert "probabilities was asked for, expected label" in refused
    sets, old = "competition.metric=log_loss blend.members=[slim]", set(workspace.submissions.glob("*.csv"))
    output = workspace.do("blend", sets=sets)  # with the data that were there
    assert "log_loss scores probabilities, and submissions of small are labels" in output
    (file,), before = set(workspace.submissions.glob("*.csv")) - old, workspace.ledger()
    refused = workspace.refused_here("grade", file=file.name)
    assert f"{file.name} was blended by log_loss, and competition.metric is macro_f1; `make blend`" in refused
    assert "the solution was not opened" in workspace.refused_here("grade", sets)
    assert workspace.ledger() == before
    assert not ledger.read(workspace.submissions / "ledger.jsonl").solution_accesses


def test_a_deleted_submission_is_written_again_unless_another_process_writes_the_result(workspace: Workspace) -> None:
    content = workspace.submission()
    next(workspace.submissions.glob("*.csv")).unlink()
    with FileLock(workspace.blend / "manifest.lock"):
        assert "is in use by another run" in workspace.refused("blend", "--force")
    workspace.here("blend")
    assert workspace.submission() == content


def test_a_wrong_member_or_fold_is_an_error(finished: Workspace) -> None:
    for fold in ("3", "-1", "0,,1"):
        assert f"FOLD={fold}: folds are whole numbers from 0 to 2" in finished.refused_here("train", fold=fold)
    assert "MEMBER=wid: no such member; the members are slim, wide" in finished.refused_here("train", member="wid")


def test_data_prepared_for_another_task_are_refused_by_every_stage(workspace: Workspace) -> None:
    for sets, change in (
        ("prepare.folds=2", "prepare.folds: 3 -> 2"),
        ("competition.metric=quadratic_kappa", "competition.target: single -> ordinal"),
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
        run_stage("pipelines.main_job.download", "download", options, "", {}, Hosts())
    *traceback, sentence = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and "SET train.epoch: unknown key; did you mean 'epochs'?" in sentence
    assert any("Traceback" in line for line in traceback) if debug else traceback == []
    assert not (tmp_path / "work").exists()


TIMM, HEAD = "members.slim.architecture=timm:resnet18 members.slim.alpha=1.0", "'members.slim.head={kind: linear}'"


def test_every_wrong_name_is_found_before_anything_is_downloaded(tmp_path: Path) -> None:
    workspace = new_workspace(tmp_path)
    for override, message in (
        ("members.slim.architecture=MobileNett", "SET members.slim.architecture: .*; did you mean 'MobileNet'?"),
        ("members.slim.weights=absent.weights.h5", "members.slim.weights: absent.weights.h5 does not exist"),
        ("members.slim.architecture=MobileNetV2 members.slim.weights=imagenet", "slim.alpha: 0.25 .* exist for 0.35"),
        ("members.slim.weights=imagnet", "'imagnet' was found; .* did you mean 'imagenet'?"),
        ("members.slim.weights=imagenet", "there are no ImageNet weights of cnn"),
        ("members.slim.architecture=from_file", "architecture from_file needs a .keras file"),
        ("members.slim.normalise=imagenet", "only architecture from_file takes another value than auto"),
        (TIMM, "a network of timm is not trained here; give the member a head"),
        (f"{TIMM} {HEAD} members.slim.weights=model.pth", "expected imagenet, none or a .safetensors"),
        (f"{TIMM} {HEAD} members.slim.normalise=bgr", "takes another value than auto"),
        ("predict.views=[identity,flip_rl]", "predict.views: .*; did you mean 'flip_lr'?"),
        ("'train.augment={grayscale: 0.5}'", "train.augment: 'grayscale' is not known; did you mean 'greyscale'?"),
        ("tune.trials=1 'tune.search={architecture: {choices: [cnn, ResNet51]}}'", "tune.search: .*ResNet51"),
        ("'prepare.external={more: absent}'", "prepare.external.more: absent is not a folder"),
        ("prepare.group_by=column", "prepare.group_by: column was found .* set both"),
        ("blend.methods=[bagging]", "blend.methods: 'bagging' is not known; did you mean 'bagged'?"),
        ("decision.rules=[argmin]", "decision.rules: 'argmin' is not known; did you mean 'argmax'?"),
        ("competition.metric=macro_f", "competition.metric: 'macro_f' is not known; did you mean 'macro_f1'?"),
        ("members.slim.views=[shift_up]", "members.slim.views: expected 'identity' among the views"),
        ("'members.slim.head={kind: rbf}' members.slim.teacher=[wide]", "a member with a head is fitted to labels"),
    ):
        assert re.search(message.replace("?", r"\?"), workspace.refused_here("download", override)), override
    assert not list(tmp_path.rglob("raw*"))


def test_every_network_of_keras_is_known_without_importing_keras() -> None:
    import keras

    assert set(ARCHITECTURES) - {"cnn"} == {name for name in dir(keras.applications) if name[0].isupper()}


# None of these is needed to read results; each takes a tenth of a second up to some seconds to import.
HEAVY = {"tensorflow", "keras", "jax", "ray", "plotly", "matplotlib", "scipy", "sklearn", "optuna", "cv2", "kaggle"}
SCORING = {"scipy", "sklearn"}


def imported(workspace: Workspace, stages: list[list[str]]) -> set[str]:
    """The packages that one process imports in which these stages run one after another."""
    arguments = [word for words in stages for word in ("+", *workspace.command(*words)[3:])][1:]
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    command = [sys.executable, "-m", "pipelines", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-2000:]}"
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines() if "|" in line}


def test_commands_that_read_results_import_no_large_package_and_others_only_what_they_compute_with(workspace) -> None:
    (file,), run = workspace.submissions.glob("*.csv"), workspace.fold("slim", 0).parent.name[:8]
    both = ["--a", file.stem[:6], "--b", file.stem]  # the only submission twice
    listing = [[stage] for stage in ("download", "prepare", "resolve", "tune", "train", "predict", "blend")]  # current
    listing += [["runs"], ["folds"], ["compare-submissions", *both], ["grade"], ["submissions"], ["leaderboard"]]
    listing += [["prune"], ["adopt", "--run", f"slim@{run}"], ["doctor", "--explain", "No TPU platform found"]]
    packages = imported(workspace, listing)
    assert "pandas" in packages and HEAVY & packages == set()
    packages = imported(workspace, [["compare-blends", *both], ["list-blends"], ["report"]])
    assert (HEAVY - SCORING) & packages == set()


def test_a_closed_pipe_ends_a_command_quietly(workspace: Workspace) -> None:
    for closed, words in (
        ("stdout", ("runs", "+", "report")),  # which is then not begun
        ("stderr", ("adopt", "--run", "slim@00000000")),  # an error
    ):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as nobody:
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: nobody}
            result = subprocess.run(workspace.command(*words), cwd=ROOT, text=True, **streams)
        assert (result.returncode, result.stdout or "", result.stderr or "") == (141, "", ""), closed
    assert not (workspace.work / "report.html").exists()


# Decoding takes at least 50 ms, so that a rate above 20 images per second and thread is one of other work.
SHORT = """
import time
from competition.input_pipeline import decoded_rows
from competition.training import bench
bench.MEASURED_SECONDS = 0.2
decode = decoded_rows.decode_record
decoded_rows.decode_record = lambda *record: time.sleep(0.05) or decode(*record)
"""


@pytest.mark.long
def test_plan_bench_and_debug_measure_and_draw_and_change_no_result(workspace: Workspace) -> None:
    before = workspace.files()
    output = workspace.do("plan", "--member", "slim", "--machines", "2")
    planned = json.loads((workspace.work / "plan.json").read_text())
    cost = planned["members"]["slim"]
    assert min(cost["train"], cost["predict"]) > 0 and planned["seconds"] > cost["train"] + cost["predict"]
    assert "plan: slim: training " in output and planned["machines"]["number"] == 2

    ran = workspace.run("bench", "--member", "slim", code=SHORT)
    assert ran.code == 0 and "waits for data" in ran.out, ran
    result = json.loads((workspace.work / "bench.json").read_text())["slim"]
    assert set(result["images_per_second"]) == {"decoded", "read", "augmented", "step", "trained"}
    assert min(result["images_per_second"].values()) > 1 and 0 <= result["waiting"] < 1
    # The images are in the cache since they were trained on, and are decoded all the same.
    assert result["images_per_second"]["decoded"] < 20 * (os.cpu_count() or 1) < result["images_per_second"]["read"]

    arguments = ("--debug", "--member", "slim", "--fold", "1", "--debug-rows", "40")
    ran = workspace.run("debug", *arguments, TF_ENABLE_ONEDNN_OPTS="1")
    # No start-up lines of TensorFlow.
    assert ran.code == 0 and not re.search(r"absl|port\.cc|oneDNN|^[IWE]\d{4} ", ran.out + ran.err, re.MULTILINE)
    with Image.open(workspace.work / "debug" / "slim-fold1-batch.png") as sheet:
        assert min(sheet.size) > 100 and len(set(sheet.convert("L").getdata())) > 10  # not a blank image
    after = workspace.files()
    assert {path: after.get(path) for path in before} == before
