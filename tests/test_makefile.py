"""The verbs of make, their order and the arguments of the stages, recorded by a fake `python`."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from builders import ROOT
from make_calls import calls_of_make, stages_of
from typer.testing import CliRunner

from pipelines.terminal.cli import COMMON, FOLDERS, VERBS, app
from pipelines.terminal.options import FIELDS, flag_of


@pytest.fixture
def called(tmp_path: Path):
    """called("train", "FOLD=2") returns the argument list of each stage that make started."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(*arguments: str, fails: str = "") -> list[list[str]]:
        process, calls = make.run(*arguments, fails=fails)
        assert (process.returncode == 0) == (not fails), process.stderr
        return [stage for call in calls for stage in stages_of(call)]

    make.run = partial(calls_of_make, folder)
    return make


def stages(calls: list[list[str]]) -> list[str]:
    assert all(call[:2] == ["-m", "pipelines"] for call in calls)
    return [call[2] for call in calls]


def option(call: list[str], name: str) -> str | None:
    return call[call.index(name) + 1] if name in call else None


def test_the_main_job_runs_its_stages_in_order(called) -> None:
    expected = ["download", "prepare", "resolve", "preflight", "tune", "train", "predict", "blend"]
    assert stages(called("download", "train", "predict")) == expected


def processes(called, *goals: str) -> list[list[str]]:
    """The stages of each process that make starts."""
    return [stages(stages_of(call)) for call in called.run(*goals)[1]]


def test_targets_that_follow_each_other_run_in_one_process(called) -> None:
    train = ["resolve", "preflight", "tune", "train"]
    assert processes(called, "train", "predict") == [[*train, "predict", "blend"]]
    assert processes(called, "train", "predict", "submit") == [[*train, "predict", "blend"], ["submit"]]
    assert processes(called, "train", "report", "predict") == [train, ["report"], ["predict", "blend"]]
    assert processes(called, "train", "predict", "DEBUG=1") == [[*train[:3], "debug"], ["predict", "blend"]]


def test_a_process_that_fails_ends_the_job(called) -> None:
    assert stages(called("doctor", "download", "train", "submit", fails="doctor")) == ["doctor"]
    assert stages(called("download", "train", "submit", fails="download"))[-1] == "train"


def test_a_stage_that_fails_ends_its_process_with_its_exit_code(tmp_path) -> None:
    folders = ["--work", str(tmp_path), "--submissions", str(tmp_path)]
    folders += ["--set", "tune.trials=0"]
    result = command_line("pipelines", "tune", *folders, "+", "resolve", *folders, "+", "tune", *folders)
    assert result.returncode == 1 and "`make download`" in result.stderr
    assert result.stdout.count("tune: not asked for") == 1


def test_a_closed_pipe_is_no_error_of_a_listing_and_one_of_the_main_job(called) -> None:
    """FAKE_PYTHON exits with 141, as a stage whose output nobody reads."""
    for goals, first, code in ((["runs"], "runs", 0), (["runs", "table"], "runs", 2), (["train"], "resolve", 2)):
        process, calls = called.run(*goals, fails=first, code=141)
        assert (process.returncode, len(calls)) == (code, 1) and (code or process.stderr == ""), goals


@pytest.mark.parametrize("lines", [0, 3])
def test_help_ends_quietly_when_nobody_reads_on(lines: int) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = f"set -o pipefail; make help | head -n {lines}"
    process = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (process.returncode, process.stderr, process.stdout.count("\n")) == (0, "", lines)


def test_every_stage_gets_the_same_parameters(called) -> None:
    sets = """train.epochs=3 predict.views="[identity, flip_lr]" competition.slug='a;b' """
    calls = called("download", "train", "predict", f"SET={sets}", "PARAMS=recipes/my own.yaml")
    assert {option(call, "--set") for call in calls} == {sets}
    assert {option(call, "--params") for call in calls} == {"recipes/my own.yaml"}


def test_only_downloads_some_files_and_nothing_is_indexed(called) -> None:
    calls = called("download", 'ONLY=train "images"/*.jpg')
    assert stages(calls) == ["download"]
    assert '--only=train "images"/*.jpg' in calls[0]


def test_member_fold_and_force_reach_training(called) -> None:
    train = called("train", "MEMBER=cnn", "FOLD=2", "FORCE=1")[-1]
    assert (option(train, "--member"), option(train, "--fold"), "--force" in train) == ("cnn", "2", True)
    train = called("train")[-1]
    assert "--member" not in train and "--fold" not in train and "--force" not in train


def test_kaggle_status_verbs_reach_their_stages(called) -> None:
    calls = called("leaderboard", "kernel-status", "kernel-log", "quota", "TOP=50")
    assert stages(calls) == ["leaderboard", "kernel-status", "kernel-status", "quota"]
    assert option(calls[0], "--top") == "50"
    assert ["--log" in call for call in calls] == [False, False, True, False]


@pytest.mark.parametrize("verb", ["submit", "kernel"])
def test_again_reaches_submit_and_kernel(called, verb) -> None:
    assert ["--again" in call for call in called(verb, "AGAIN=1")] == [True]
    assert ["--again" in call for call in called(verb)] == [False]


def test_allow_partial_reaches_both_stages_of_predict(called) -> None:
    assert all("--allow-partial" in call for call in called("predict", "ALLOW_PARTIAL=1"))
    assert not any("--allow-partial" in call for call in called("predict"))


def test_a_cluster_reaches_training_prediction_and_tuning_and_installs_ray(called) -> None:
    calls = called("train", "predict", "CLUSTER=10.0.0.1:6379")
    clusters = {call[2]: option(call, "--cluster") for call in calls}
    assert {stage for stage, cluster in clusters.items() if cluster == "10.0.0.1:6379"} == {"train", "predict"}
    assert not any("--cluster" in call for call in called("train", "predict"))
    (tune,) = called("tune", "CLUSTER=auto", "WORKERS=8")
    assert (option(tune, "--cluster"), option(tune, "--workers")) == ("auto", "8")
    (plan,) = called("plan", "MACHINES=4")
    assert option(plan, "--machines") == "4"


def test_export_and_serve_get_their_options(called) -> None:
    (export,) = called("export", "MEMBER=cnn", "FOLD=0", "FORMAT=onnx,litert")
    assert export[2] == "export" and option(export, "--format") == "onnx,litert"
    assert (option(export, "--member"), option(export, "--fold")) == ("cnn", "0")
    (serve,) = called("serve", "ENGINE=saved_model", "ADDRESS=127.0.0.1:0")
    assert serve[2] == "serve" and option(serve, "--engine") == "saved_model"
    assert option(serve, "--address") == "127.0.0.1:0"


def test_debug_reaches_every_stage(called) -> None:
    calls = called("train", "DEBUG=1", "DEBUG_ROWS=64")
    assert all("--debug" in call and call[-1] == "1" for call in calls)
    assert option(calls[-1], "--debug-rows") == "64"


def test_help_names_every_verb_and_variable() -> None:
    output = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for verb in (
        "download",
        "train",
        "predict",
        "tune",
        "blend",
        "export",
        "serve",
        "submit",
        "test",
        "clean",
        "fresh",
        "help",
    ):
        assert f"\n  {verb} " in output
    for verb in ("kernel", "kernel-status", "kernel-log", "quota", "leaderboard", "submissions"):
        assert f"\n  {verb} " in output
    for variable in ("PARAMS=", "SET=", "MEMBER=", "FOLD=", "FORCE=", "ALLOW_PARTIAL=", "DEBUG=", "EXTRA="):
        assert variable in output


def test_make_calls_only_verbs_of_the_command() -> None:
    calls = re.findall(r"call (?:STAGE|with),([a-z-]+|\$@)", (ROOT / "Makefile").read_text())
    assert {"download", "debug", "train", "kernel-status"} <= {*calls} <= {*VERBS, "$@"}


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("EPOCHS=3", 'did you mean SET="train.epochs=3"?'),
        ("FOLDS=3", 'did you mean FOLD=3 or SET="prepare.folds=3"?'),
        ("MEMBERS=cnn", "did you mean MEMBER=cnn"),
        ("member=cnn", "did you mean MEMBER=cnn"),
        ("TRAIN_EPOCHS=3", 'did you mean SET="train.epochs=3"?'),
        ('ZZZZ=it\'s a "test"', 'ZZZZ=it\'s a "test": unknown variable; variables: A ADDRESS AGAIN'),
    ],
)
def test_an_unknown_variable_is_an_error_with_a_suggestion_and_nothing_runs(called, variable, suggestion) -> None:
    process, calls = called.run("train", variable)
    assert process.returncode == 2 and calls == []
    assert suggestion in process.stderr and "Traceback" not in process.stderr


def test_every_variable_that_help_names_is_accepted_and_the_environment_is_not_checked(called, monkeypatch) -> None:
    output = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    variables = re.findall(r"\b([A-Z][A-Z_]*)=", output.partition("\nVariables\n")[2])
    allowed = re.search(r"^VARIABLES := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert allowed is not None and sorted(variables) == sorted(set(allowed[1].replace("\\", "").split()))
    names = set(variables) - {"PYTHON", "BIN"}
    monkeypatch.setenv("EPOCHS", "3")
    assert stages(called("quota", *(f"{name}=" for name in names))) == ["quota"]


def test_variables_of_the_environment_reach_the_stages(called, monkeypatch) -> None:
    monkeypatch.setenv("MEMBER", "cnn")
    assert option(called("train")[-1], "--member") == "cnn"


def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(("folder", "verb"), [(folder, verb) for folder, verbs in FOLDERS.items() for verb in verbs])
def test_every_verb_has_a_module_and_shows_its_options(folder, verb) -> None:
    file = ROOT / "pipelines" / folder / f"{verb.replace('-', '_')}.py"
    assert "\ndef run(job: Job) -> None:\n" in file.read_text()
    output = CliRunner().invoke(app, [verb, "--help"]).stdout
    for name in (*COMMON, *VERBS[verb].options):
        assert flag_of(name) in output


def test_a_wrong_option_or_verb_is_an_error_with_exit_code_2() -> None:
    process = command_line("pipelines", "preflight", "--mode", "fast")
    assert process.returncode == 2 and "'fast' is not one of compile, quick, ops" in process.stderr
    process = command_line("pipelines", "train", "--epochs", "3")
    assert process.returncode == 2 and "No such option: --epochs" in process.stderr
    assert command_line("pipelines", "trian").returncode == 2


def test_every_option_has_a_help_text_and_belongs_to_a_verb() -> None:
    assert {*COMMON, *(name for verb in VERBS.values() for name in verb.options)} == FIELDS.keys()
    assert all(option.metadata["help"] for option in FIELDS.values())
