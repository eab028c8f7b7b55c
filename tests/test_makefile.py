"""The verbs of make, their order and the arguments of the stages, recorded by a fake `python`."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from builders import ROOT
from make_calls import READY, Stage, calls_of_make, stages_of
from typer.testing import CliRunner

from pipelines.terminal.cli import app
from pipelines.terminal.options import FIELDS, flag_of
from pipelines.terminal.verbs import COMMON, FOLDERS, VERBS


@pytest.fixture
def called(tmp_path: Path):
    """called("train", "FOLD=2") returns each stage that make runs, with its options."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(*arguments: str, fails: str = "") -> list[Stage]:
        process, calls = make.run(*arguments, fails=fails)
        assert (process.returncode == 0) == (not fails), process.stderr
        return [stage for call in calls for stage in stages_of(call)]

    make.run = partial(calls_of_make, folder)
    return make


def printed_by(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def names(stages: list[Stage]) -> list[str]:
    return [stage.name for stage in stages]


def test_the_main_job_runs_its_stages_in_order(called) -> None:
    expected = ["download", "prepare", "resolve", "preflight", "tune", "train", "predict", "blend"]
    assert names(called("download", "train", "predict")) == expected


def test_a_stated_time_replaces_tuning_and_training_by_the_budget(called) -> None:
    stages = called("download", "train", "predict", "HOURS=0.5")
    assert names(stages) == ["download", "prepare", "resolve", "preflight", "budget", "predict", "blend"]
    assert {stage.options.hours for stage in stages[4:]} == {0.5}
    assert called("train", "BUDGET=good")[-1].options.budget == "good"
    assert called("train", "BUDGET=good", "CLUSTER=auto")[-1].options.cluster == "auto"
    assert names(stages_of((["-m", "pipelines", "train", "--hours", "1", "--member", "cnn"], {}))) == []


def processes(called, *goals: str) -> list[list[str]]:
    """The stages of each process that make starts."""
    return [names(stages_of(call)) for call in called.run(*goals)[1]]


def test_targets_that_follow_each_other_run_in_one_process(called) -> None:
    train = ["resolve", "preflight", "tune", "train"]
    assert processes(called, "train", "predict") == [[*train, "predict", "blend"]]
    assert processes(called, "train", "predict", "submit") == [[*train, "predict", "blend"], ["submit"]]
    assert processes(called, "train", "report", "predict") == [train, ["report"], ["predict", "blend"]]
    assert processes(called, "train", "predict", "DEBUG=1") == [[*train[:3], "debug"], ["predict", "blend"]]


@pytest.mark.parametrize("verb", ["download", "train", "predict"])
def test_the_command_runs_the_same_stages_as_make_unless_it_is_told_to_run_one(called, verb) -> None:
    made, without_make = called(verb, "FORCE=1"), stages_of((["-m", "pipelines", verb, "--force"], {}))
    assert without_make == made
    assert names(stages_of((["-m", "pipelines", verb, "--alone"], {}))) == [verb]


def test_the_stages_of_training_have_the_options_of_the_job(called) -> None:
    _, preflight, tune, train = called("train", "MEMBER=cnn", "FOLD=2", "CLUSTER=auto")
    assert (preflight.options.mode, preflight.options.if_tpu, preflight.options.member) == ("ops", True, "cnn")
    assert (tune.options.member, tune.options.cluster, tune.options.as_part) == ("cnn", "", True)
    assert (train.options.member, train.options.fold, train.options.cluster) == ("cnn", "2", "auto")


def test_a_process_that_fails_ends_the_job(called) -> None:
    assert names(called("doctor", "download", "train", "submit", fails="doctor")) == ["doctor"]
    assert names(called("download", "train", "submit", fails="download"))[-1] == "train"


def test_a_signal_that_ends_make_ends_its_server(tmp_path) -> None:
    for ready in READY:
        (tmp_path / ready).touch()
    server = f"#!{sys.executable}\nimport time\nprint('started', flush=True)\ntime.sleep(20)\nprint('not ended')\n"
    (tmp_path / "python").write_text(server)
    (tmp_path / "python").chmod(0o755)
    command = ["make", f"BIN={tmp_path}", "serve"]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as made:
        assert made.stdout is not None and made.stdout.readline() == "started\n"
        made.terminate()
        assert made.stdout.read() == ""  # until the last process that writes to it has ended


VALUES = ["`touch hit`", "$(touch hit)", '"; touch hit; "', "'; touch hit; '", "$(shell touch hit)", "a b\\"]


def test_no_value_of_a_variable_is_run_by_a_shell_and_each_arrives_as_typed(called, tmp_path) -> None:
    names = "A ADDRESS B BACKEND CLUSTER ENGINE EXPLAIN FILE FOLD FORMAT MACHINES MEMBER MODE ONLY PARAMS RUN SEEDS SET SOURCE"
    given = dict(zip([*names.split(), "TARGET", "TOP", "TOPOLOGY", "TRIAL", "WORKERS"], VALUES * 4))
    goals = "runs export serve tune train submit compare-submissions compare-blends preflight plan leaderboard adopt noise convert"
    goals_of_all = [*goals.split(), "doctor", "download"]
    process, calls = called.run("-B", *goals_of_all, *(f"{name}={value}" for name, value in given.items()))
    assert not (ROOT / "hit").exists() and process.returncode == 0, process.stderr
    assert len(calls) >= len(goals_of_all)
    assert all({name: environment[f"GOLDFOLD_{name}"] for name in given} == given for _, environment in calls)
    for value in VALUES[:4]:  # the shell of an installation, of a soak, and of an unknown variable
        for arguments in (["EXTRA=" + value, "KILLS=" + value], ["PYTHON=" + value, f"X{value}=1"]):
            called.run("-B", "report", "soak", *arguments)
            assert not (ROOT / "hit").exists(), arguments


def test_a_stage_that_fails_ends_its_process_with_its_exit_code(tmp_path) -> None:
    folders = ["--work", str(tmp_path), "--submissions", str(tmp_path)]
    folders += ["--set", "tune.trials=0"]
    result = command_line("pipelines", "tune", *folders, "+", "resolve", *folders, "+", "tune", *folders)
    assert result.returncode == 1 and "`make download SET=" in result.stderr
    assert result.stdout.count("tune: not asked for") == 1


def test_a_closed_pipe_is_no_error_of_a_listing_and_one_of_the_main_job(called) -> None:
    """FAKE_PYTHON exits with 141, as a stage whose output nobody reads."""
    for goals, first, code in ((["runs"], "runs", 0), (["runs", "list-blends"], "runs", 2), (["train"], "train", 2)):
        process, calls = called.run(*goals, fails=first, code=141)
        assert (process.returncode, len(calls)) == (code, 1) and (code or process.stderr == ""), goals


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("train", "MEMBER=cnn", "FOLD=2", "FORCE=1"), {"member": "cnn", "fold": "2", "force": True}),
        (("train",), {"member": "", "fold": "", "force": False, "cluster": ""}),
        (("download", 'ONLY=train "images"/*.jpg'), {"only": 'train "images"/*.jpg'}),  # nothing is indexed
        (("kernel-log",), {"log": True}),
        (("submit",), {"again": False}),
        (("submit", "AGAIN=1"), {"again": True}),
        (("predict", "CLUSTER=10.0.0.1:6379"), {"cluster": "10.0.0.1:6379"}),
        (("serve", "ENGINE=saved_model", "ADDRESS=127.0.0.1:0"), {"engine": "saved_model", "address": "127.0.0.1:0"}),
    ],
)
def test_variables_of_make_are_options_of_the_last_stage_of_the_verb(called, arguments, expected) -> None:
    stages = called(*arguments)
    stage = stages[0 if arguments[0] == "predict" else -1]
    assert len(stages) == 1 or "only" not in expected
    assert {name: getattr(stage.options, name) for name in expected} == expected


def test_allow_partial_reaches_both_stages_of_predict_and_debug_every_one(called) -> None:
    assert [stage.options.allow_partial for stage in called("predict", "ALLOW_PARTIAL=1")] == [True, True]
    assert not any(stage.options.allow_partial for stage in called("predict"))
    assert all(stage.options.debug for stage in called("train", "DEBUG=1"))
    assert {environment["DEBUG"] for _, environment in called.run("train", "DEBUG=1")[1]} == {"1"}


def test_help_all_names_every_verb() -> None:
    output = printed_by("make", "help-all")
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    # Steps of `make download` and `make train`, and a name of `make download train predict`.
    others = {"prepare", "resolve", "budget", "main-job"}
    named = re.findall(r"^  ([a-z-]+) {2,}[^ ]", output.partition("\nVariables\n")[0], re.MULTILINE)
    assert sorted(named) == sorted({*targets[1].split()} - others)


def test_make_calls_only_verbs_of_the_command() -> None:
    calls = re.findall(r"call GOLDFOLD,([a-z-]+|\$@)", (ROOT / "Makefile").read_text())
    assert {"submit", "kernel-status"} <= {*calls} <= {*VERBS, "$@"}


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("EPOCHS=3", 'did you mean SET="train.epochs=3"?'),
        ("member=cnn", "did you mean MEMBER=cnn"),
        ('ZZZZ=it\'s a "test"', 'ZZZZ=it\'s a "test": unknown variable; variables: A ADDRESS AGAIN'),
    ],
)
def test_an_unknown_variable_is_an_error_with_a_suggestion_and_nothing_runs(called, variable, suggestion) -> None:
    process, calls = called.run("train", variable)
    assert process.returncode == 2 and calls == []
    assert suggestion in process.stderr and "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("blend", "MEMBER=x"), "MEMBER: not a variable that blend reads; it is read by tune, train, runs"),
        (("train", "predict", "TOP=5"), "TOP: not a variable that train and predict read; it is read by leaderboard"),
    ],
)
def test_a_variable_that_no_target_reads_is_refused_by_name_and_nothing_runs(called, arguments, sentence) -> None:
    process, calls = called.run(*arguments)
    assert process.returncode == 2 and calls == []
    assert sentence in process.stderr and "Traceback" not in process.stderr


def test_a_misspelt_verb_is_an_error_with_a_suggestion_and_nothing_runs(called) -> None:
    for call in (("trian",), ("trian", "SET=train.epochs=3")):
        process, calls = called.run(*call)
        assert process.returncode == 2 and calls == []
        assert "make trian: no such verb, did you mean `make train`?" in process.stderr, process.stderr
    process, calls = called.run("zzzzzz")
    assert process.returncode == 2 and calls == [] and "did you mean" not in process.stderr


def test_a_variable_that_one_of_several_targets_reads_is_accepted(called) -> None:
    assert names(called("tune", "blend", "MEMBER=cnn", "SET=train.epochs=3")) == ["tune", "blend"]


def test_every_variable_that_help_names_is_accepted_and_the_environment_is_not_checked(called, monkeypatch) -> None:
    output = printed_by("make", "help-all")
    variables = re.findall(r"\b([A-Z][A-Z_]*)=", output.partition("\nVariables\n")[2])
    allowed = re.search(r"^VARIABLES := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert allowed is not None and sorted(variables) == sorted(set(allowed[1].replace("\\", "").split()))
    others = set(variables) - {"PYTHON", "BIN"}
    monkeypatch.setenv("EPOCHS", "3")
    assert names(called("quota", *(f"{name}=" for name in others))) == ["quota"]
    monkeypatch.setenv("MEMBER", "cnn")
    assert called("train")[-1].options.member == "cnn"  # those of the environment reach the stages


def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(("folder", "verb"), [(folder, verb) for folder, verbs in FOLDERS.items() for verb in verbs])
def test_every_verb_has_a_module_and_shows_its_options(folder, verb) -> None:
    file = ROOT / "pipelines" / folder / f"{verb.replace('-', '_')}.py"
    assert "\ndef run(job: Job) -> None:\n" in file.read_text()
    output = CliRunner().invoke(app, [verb, "--help"]).stdout
    for name in (*COMMON, *VERBS[verb].options):
        assert flag_of(name) in output


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("train --hours 0", "goldfold: HOURS=0: expected a positive number of hours, e.g. HOURS=0.5\n"),
        ("predict --budget fast", "goldfold: BUDGET=fast: 'fast' is not one of quick, good, best\n"),
        ("train --hours 0.1 --budget good", "goldfold: HOURS=0.1 and BUDGET=good both state the time: state one"),
        ("preflight --limit nan", "goldfold: LIMIT=nan: expected a positive number of seconds"),
        ("train --debug --debug-rows 0", "goldfold: DEBUG_ROWS=0: expected a whole number of at least 1"),
        ("plan --machines -1", "goldfold: MACHINES=-1: expected a whole number of at least 0"),
        ("train --epochs 3", "No such option"),
        ("trian", "No such command"),
    ],
)
def test_a_wrong_verb_option_or_number_is_refused_with_exit_code_2_before_anything_runs(command, sentence) -> None:
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2 and sentence in result.output
    assert ("Usage:" in result.output) != sentence.startswith("goldfold: ")


def test_every_option_has_a_help_text_and_belongs_to_a_verb() -> None:
    assert {*COMMON, *(name for verb in VERBS.values() for name in verb.options)} == FIELDS.keys()
    assert all(option.metadata["help"] for option in FIELDS.values())


INSTALLER = """#!/bin/bash
if [ "$3" == pip ]; then
  printf 'Collecting %s>=1.0 (from x)\\n  Downloading it\\n' keras numpy
  echo 'Installing collected packages: keras, numpy'
  exit ${CODE:-0}
fi
"""


@pytest.mark.parametrize("code", [0, 3])
def test_the_installation_counts_its_packages_and_ends_with_the_error_of_pip(tmp_path: Path, code: int) -> None:
    (tmp_path / "python").write_text(INSTALLER)
    (tmp_path / "python").chmod(0o755)
    command = ["make", f"BIN={tmp_path}", "doctor"]
    process = subprocess.run(command, cwd=ROOT, env={**os.environ, "CODE": str(code)}, capture_output=True, text=True)
    assert "  unpacking 2 packages\n" in process.stdout and (process.returncode == 0) == (code == 0)
    assert (tmp_path / ".ready").exists() == (code == 0)
