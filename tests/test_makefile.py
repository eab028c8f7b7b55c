"""The verbs of make, their order and the arguments of the stages, recorded by a fake `python`."""

import os
import re
import shlex
import subprocess
import sys
from functools import partial

import pytest
from builders import ROOT
from make_calls import READY, Stage, calls_of_make, make_executable, stages_of
from preloaded import run_preloaded
from typer.testing import CliRunner

from pipelines.terminal.cli import app
from pipelines.terminal.verbs import VERBS


@pytest.fixture
def called(tmp_path):
    """called("train", "FOLD=2") returns each stage that make runs, with its options."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(*arguments: str, fails: str = "") -> list[Stage]:
        process, calls = make.run(*arguments, fails=fails)
        assert (process.returncode == 0) == (not fails), process.stderr
        return [stage for call in calls for stage in stages_of(call)]

    make.run = partial(calls_of_make, folder)
    return make


def names(stages: list[Stage]) -> list[str]:
    return [stage.name for stage in stages]


TRAIN = ["resolve", "preflight", "tune", "train"]


@pytest.mark.parametrize(
    ("goals", "processes"),
    [
        ("download train predict", [["download", "prepare", *TRAIN, "predict", "blend"]]),
        ("train predict submit", [[*TRAIN, "predict", "blend"], ["submit"]]),
        ("train report predict", [TRAIN, ["report"], ["predict", "blend"]]),
        ("train predict DEBUG=1", [[*TRAIN[:3], "debug"], ["predict", "blend"]]),
        ("train predict HOURS=0.5", [[*TRAIN[:2], "budget", "predict", "blend"]]),
    ],
)
def test_the_stages_of_targets_that_follow_each_other_run_in_order_in_one_process(called, goals, processes) -> None:
    assert [names(stages_of(call)) for call in called.run(*goals.split())[1]] == processes


@pytest.mark.parametrize("verb", ["download", "train", "predict"])
def test_the_command_runs_the_same_stages_as_make_unless_it_is_told_to_run_one(called, verb) -> None:
    made, without_make = called(verb, "FORCE=1"), stages_of((["-m", "pipelines", verb, "--force"], {}))
    assert without_make == made and names(stages_of((["-m", "pipelines", verb, "--alone"], {}))) == [verb]


def test_a_stage_alone_keeps_the_meaning_of_its_options() -> None:
    (debug,) = stages_of((["-m", "pipelines", "train", "--alone", "--debug", "--debug-rows", "64"], {}))
    assert (debug.name, debug.options.debug_rows) == ("debug", 64)
    (predict,) = stages_of((["-m", "pipelines", "predict", "--alone", "--hours", "1"], {}))
    assert (predict.name, predict.options.hours) == ("predict", 1.0)  # of the members that the budget made


def test_a_process_that_fails_ends_the_job(called) -> None:
    assert names(called("doctor", "download", "train", "submit", fails="doctor")) == ["doctor"]
    assert names(called("download", "train", "submit", fails="download"))[-1] == "train"


def test_a_server_without_an_export_says_so_before_its_packages_are_installed(tmp_path) -> None:
    words = ["-m", "pipelines", "serve", "--work", str(tmp_path), "--check"]
    make_executable(tmp_path / "python", f'#!/bin/sh\necho "$@"\nexec {sys.executable} {shlex.join(words)}\n')
    (tmp_path / ".ready").touch()
    process = subprocess.run(["make", f"BIN={tmp_path}", "serve"], cwd=ROOT, text=True, capture_output=True)
    assert process.returncode and "holds no finished export" in process.stderr and "pip install" not in process.stdout


def test_a_signal_that_ends_make_ends_its_server(tmp_path) -> None:
    for ready in READY:
        (tmp_path / ready).touch()
    server = f"#!{sys.executable}\nimport time\nprint('started', flush=True)\ntime.sleep(20)\nprint('not ended')\n"
    make_executable(tmp_path / "python", server)
    command = ["make", f"BIN={tmp_path}", "serve"]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as made:
        assert made.stdout is not None and made.stdout.readline() == "started\n"
        made.terminate()
        assert made.stdout.read() == ""  # until the last process that writes to it has ended


VALUES = ["`touch hit`", "$(touch hit)", '"; touch hit; "', "'; touch hit; '", "$(shell touch hit)", "a b\\"]


def test_no_value_of_a_variable_is_run_by_a_shell_and_each_arrives_as_typed(called, tmp_path) -> None:
    names = (
        "A ADDRESS B BACKEND CLUSTER ENGINE EXPLAIN FILE FOLD FORMAT MACHINES MEMBER MODE PARAMS RUN SEEDS SET SOURCE"
    )
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
    folders = ["--work", str(tmp_path), "--submissions", str(tmp_path), "--set", "tune.trials=0"]
    words = ["tune", *folders, "+", "resolve", *folders, "+", "tune", *folders]
    code, out, err = run_preloaded("pipelines", words, ROOT, os.environ)
    assert code == 1 and "`make download SET=" in err and out.count("tune: not asked for") == 1


def test_a_closed_pipe_is_no_error_of_a_listing_and_one_of_the_main_job(called) -> None:
    """FAKE_PYTHON exits with 141, as a stage whose output nobody reads."""
    for goals, first, code in ((["runs"], "runs", 0), (["runs", "list-blends"], "runs", 2), (["train"], "train", 2)):
        process, calls = called.run(*goals, fails=first, code=141)
        assert (process.returncode, len(calls)) == (code, 1) and (code or process.stderr == ""), goals


MEMBER = "train MEMBER=cnn FOLD=2 CLUSTER=auto"


@pytest.mark.parametrize(
    ("command", "stage", "expected"),
    [
        ("train FORCE=1", "train", {"member": "", "fold": "", "force": True, "cluster": "", "debug": False}),
        ("train FORCE=1", "tune", {"force": False}),
        (MEMBER, "preflight", {"mode": "ops", "if_tpu": True, "member": "cnn"}),
        (MEMBER, "tune", {"member": "cnn", "cluster": "", "as_part": True}),
        (MEMBER, "train", {"member": "cnn", "fold": "2", "cluster": "auto"}),
        ("train HOURS=0.5", "budget", {"hours": 0.5}),
        ("predict HOURS=0.5", "blend", {"hours": 0.5}),
        ("train BUDGET=good CLUSTER=auto", "budget", {"budget": "good", "cluster": "auto"}),
        ("kernel-log", "kernel-status", {"log": True}),
        ("noise SEEDS=", "noise", {"seeds": 3}),  # an empty value is none
        ("submit", "submit", {"again": False}),
        ("submit AGAIN=1", "submit", {"again": True}),
        ("predict CLUSTER=10.0.0.1:6379", "predict", {"cluster": "10.0.0.1:6379", "allow_partial": False}),
        ("predict ALLOW_PARTIAL=1", "predict", {"allow_partial": True}),
        ("predict ALLOW_PARTIAL=1", "blend", {"allow_partial": True}),
        ("serve ENGINE=saved_model ADDRESS=[::1]:0", "serve", {"engine": "saved_model", "address": "[::1]:0"}),
    ],
)
def test_variables_of_make_are_options_of_the_stages_that_read_them(called, command, stage, expected) -> None:
    stages = called(*shlex.split(command))
    (options,) = [each.options for each in stages if each.name == stage]
    assert {name: getattr(options, name) for name in expected} == expected


def test_help_all_names_every_target_and_variable_and_the_environment_is_not_checked(called, monkeypatch) -> None:
    text = (ROOT / "Makefile").read_text()
    help_all = subprocess.run(["make", "help-all"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    verbs, _, variables = help_all.partition("\nVariables\n")
    (targets,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    # Steps of `make download` and `make train`, and a name of `make download train predict`.
    others = {"prepare", "resolve", "budget", "main-job"}
    assert sorted(re.findall(r"^  ([a-z-]+) {2,}[^ ]", verbs, re.MULTILINE)) == sorted({*targets.split()} - others)
    assert {"submit"} <= {*re.findall(r"call GOLDFOLD,([a-z-]+|\$@)", text)} <= {*VERBS, "$@"}
    named = re.findall(r"\b([A-Z][A-Z_]*)=", variables)
    (allowed,) = re.findall(r"^VARIABLES := (.*?[^\\])$", text, re.MULTILINE | re.DOTALL)
    assert sorted(named) == sorted(set(allowed.replace("\\", "").split()))
    monkeypatch.setenv("EPOCHS", "3")
    assert names(called("quota", *(f"{name}=" for name in set(named) - {"PYTHON", "BIN"}))) == ["quota"]
    monkeypatch.setenv("MEMBER", "cnn")
    assert called("train")[-1].options.member == "cnn"  # those of the environment reach the stages
    assert names(called("tune", "blend", "MEMBER=cnn")) == ["tune", "blend"]  # one of the two reads it


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "EPOCHS=3"), 'did you mean SET="train.epochs=3"?'),
        (("train", "member=cnn"), "did you mean MEMBER=cnn"),
        (("train", 'ZZZZ=it\'s a "test"'), 'ZZZZ=it\'s a "test": unknown variable; make help-all lists the variables'),
        (("blend", "MEMBER=x"), "MEMBER: not a variable that blend reads; it is read by tune, train, runs"),
        (("train", "predict", "TOP=5"), "TOP: not a variable that train and predict read; it is read by leaderboard"),
        (("trian", "SET=train.epochs=3"), "make trian: no such verb, did you mean `make train`?"),
        (("zzzzzz",), "make zzzzzz: no such verb"),
    ],
)
def test_an_unknown_or_unread_variable_or_verb_is_refused_and_nothing_runs(called, arguments, sentence) -> None:
    process, calls = called.run(*arguments)
    assert process.returncode == 2 and calls == []
    assert sentence in process.stderr and "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("train --hours 0", "goldfold: HOURS=0: expected a positive number of hours, e.g. HOURS=0.5\n"),
        ("predict --budget fast", "goldfold: BUDGET=fast: 'fast' is not one of quick, good, best\n"),
        ("train --hours 0.1 --budget good", "goldfold: HOURS=0.1 and BUDGET=good both state the time: state one"),
        ("preflight --limit nan", "goldfold: LIMIT=nan: expected a positive number of seconds"),
        ("train --debug --debug-rows 0", "goldfold: DEBUG_ROWS=0: expected a whole number of at least 1"),
        ("plan --machines -1", "goldfold: MACHINES=-1: expected a whole number of at least 0"),
        ("train --hours 1 --member cnn", "goldfold: with HOURS= or BUDGET= the members are chosen and trained by the"),
        ("train --hours 1 --alone", "goldfold: the stage `train` has no budget: leave out --alone, or run"),
        ("train --budget good --alone", "goldfold: the stage `train` has no budget: leave out --alone, or run"),
        ("noise --seeds=", "goldfold: SEEDS=: expected a whole number of at least 1, e.g. SEEDS=2\n"),
        ("train --hours=", "goldfold: HOURS=: expected a positive number of hours, e.g. HOURS=0.5\n"),
        ("preflight --mode=", "goldfold: MODE=: '' is not one of compile, quick, ops\n"),
        ("train --epochs 3", "No such option"),
        ("trian", "No such command"),
    ],
)
def test_a_wrong_verb_option_or_number_is_refused_with_exit_code_2_before_anything_runs(command, sentence) -> None:
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2 and sentence in result.output
    assert ("Usage:" in result.output) != sentence.startswith("goldfold: ")


@pytest.mark.parametrize("code", [0, 3])
def test_the_installation_counts_its_packages_and_ends_with_the_error_of_pip(tmp_path, code: int) -> None:
    pip = "printf 'Collecting %s>=1.0 (from x)\\n' keras numpy; echo 'Installing collected packages: keras, numpy'"
    make_executable(tmp_path / "python", f'#!/bin/bash\nif [ "$3" == pip ]; then {pip}; exit {code}; fi\n')
    command = ["make", f"BIN={tmp_path}", "doctor"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "  packages to unpack: 2\n" in process.stdout and (process.returncode == 0) == (code == 0)
    assert (tmp_path / ".ready").exists() == (code == 0)
