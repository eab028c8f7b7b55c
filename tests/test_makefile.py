"""The verbs, their order, and what reaches the stages, with a program that only writes down how it was called."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from world import ROOT

NOTE = f"""#!{sys.executable}
import json, os, sys
if "pip" not in sys.argv:
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps([*sys.argv[1:], os.environ.get("DEBUG", "")]) + "\\n")
    sys.exit(int("pipelines." + os.environ.get("FAILS", "") in sys.argv))
"""


@pytest.fixture
def called(tmp_path: Path):
    """called("train", "FOLD=2") -> the stages make ran, each as its list of arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").write_text(NOTE)
    (folder / "python").chmod(0o755)
    for ready in (".ready", ".ready-dev"):
        (folder / ready).touch()

    def make(*arguments: str, fails: str = "") -> list[list[str]]:
        calls = tmp_path / "calls"
        calls.unlink(missing_ok=True)
        around = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
        ran = subprocess.run(
            ["make", f"BIN={folder}", *arguments],
            cwd=ROOT,
            env={**around, "CALLS": str(calls), "FAILS": fails},
            capture_output=True,
            text=True,
        )
        assert (ran.returncode == 0) == (not fails), ran.stderr
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    return make


def stages(calls: list[list[str]]) -> list[str]:
    return [call[1].removeprefix("pipelines.") for call in calls]


def option(call: list[str], name: str) -> str | None:
    return call[call.index(name) + 1] if name in call else None


def test_the_main_job_runs_its_stages_in_order(called) -> None:
    expected = ["download", "prepare", "resolve", "preflight", "tune", "train", "predict", "blend"]
    assert stages(called("download", "train", "predict")) == expected


def test_a_stage_that_fails_ends_the_job(called) -> None:
    assert stages(called("download", "train", "predict", fails="tune")) == [
        "download",
        "prepare",
        "resolve",
        "preflight",
        "tune",
    ]


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


def test_the_verbs_that_only_ask_kaggle_reach_their_stages(called) -> None:
    calls = called("leaderboard", "kernel-status", "kernel-log", "quota", "TOP=50")
    assert stages(calls) == ["leaderboard", "kernel_status", "kernel_status", "quota"]
    assert option(calls[0], "--top") == "50"
    assert ["--log" in call for call in calls] == [False, False, True, False]


@pytest.mark.parametrize("verb", ["submit", "kernel"])
def test_again_reaches_what_is_otherwise_done_once(called, verb) -> None:
    assert ["--again" in call for call in called(verb, "AGAIN=1")] == [True]
    assert ["--again" in call for call in called(verb)] == [False]


def test_partial_predictions_are_asked_for_in_both_stages(called) -> None:
    assert all("--allow-partial" in call for call in called("predict", "ALLOW_PARTIAL=1"))
    assert not any("--allow-partial" in call for call in called("predict"))


def test_debug_reaches_every_stage(called) -> None:
    calls = called("train", "DEBUG=1", "DEBUG_ROWS=64")
    assert all("--debug" in call and call[-1] == "1" for call in calls)
    assert option(calls[-1], "--debug-rows") == "64"


def test_help_names_every_verb_and_variable() -> None:
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for verb in ("download", "train", "predict", "tune", "blend", "submit", "test", "clean", "fresh", "help"):
        assert f"\n  {verb} " in told
    for verb in ("kernel", "kernel-status", "kernel-log", "quota", "leaderboard", "submissions"):
        assert f"\n  {verb} " in told
    for variable in ("PARAMS=", "SET=", "MEMBER=", "FOLD=", "FORCE=", "ALLOW_PARTIAL=", "DEBUG=", "EXTRA="):
        assert variable in told


def test_every_stage_that_make_names_is_there() -> None:
    named = set(re.findall(r"call STAGE,([a-z_]+)\)", (ROOT / "Makefile").read_text()))
    assert "download" in named
    assert [stage for stage in named if not (ROOT / "pipelines" / f"{stage}.py").exists()] == []
