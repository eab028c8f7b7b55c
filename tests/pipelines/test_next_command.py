"""Each stage ends with the command that usually follows it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT, params

from pipelines.terminal.cli import VERBS
from pipelines.terminal.next_command import next_line
from pipelines.terminal.options import Options

PARAMS = ROOT / "params.yaml"


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)


def line(
    verb: str,
    goals: str | None = "",
    file: Path = PARAMS,
    work: Path = Path("none"),
    sets: str = "",
    given: str = "",
    **options,
) -> str:
    """sets: overrides of the parameters.  given: SET of the command."""
    return next_line(verb, VERBS[verb].next, params(sets), Options(file, given, **options), work, goals)


def test_the_next_command_is_that_of_make_or_of_goldfold_with_the_same_parameters() -> None:
    assert line("prepare") == "next: make train"
    assert line("prepare", None) == "next: goldfold train"
    assert line("train", file=ROOT / "recipes" / "plants.yaml") == "next: make predict PARAMS=recipes/plants.yaml"
    assert line("train", None, Path("/elsewhere/x.yaml")) == "next: goldfold predict --params /elsewhere/x.yaml"


def test_the_next_command_has_the_same_overrides() -> None:
    text = line("train", given="train.epochs=3  predict.views=[identity]")
    assert text == 'next: make predict SET="train.epochs=3  predict.views=[identity]"'
    assert line("train", None, given="train.epochs=3") == 'next: goldfold predict --set "train.epochs=3"'
    quoted = """predict.views="[identity, flip_lr]" competition.slug='a'"""
    (word,) = shlex.split(line("train", given=quoted))[3:]
    assert word == f"SET={quoted}"


def test_overrides_with_a_password_are_not_repeated() -> None:
    url = "tune.storage=postgresql+psycopg://ada:s3cret-word@host/studies"
    assert line("tune", given=url) == 'next: make train SET="..."'
    assert line("tune", None, given=url) == 'next: goldfold train --set "..."'


def test_only_the_last_stage_of_the_last_target_names_the_next_command() -> None:
    assert line("prepare", "download") == line("prepare", "prepare") == "next: make train"
    assert line("prepare", "download folds") == "" and line("folds", "download folds") == "next: make blend"
    assert line("prepare", "download train predict") == "" and line("train", "train") == "next: make predict"
    assert line("preflight", "train predict") == "" and line("preflight", "preflight") == "next: make plan"
    assert line("tune", "train") == "" and line("blend", "train predict") == "next: make report"
    assert line("download") == "" and line("download", None) == "next: goldfold prepare"


def test_of_the_stages_of_one_process_only_the_last_names_the_next_command(tmp_path: Path) -> None:
    stage = ["tune", "--set", "tune.trials=0", "--work", str(tmp_path), "--submissions", str(tmp_path)]
    command = [sys.executable, "-m", "pipelines", *stage, "+", *stage]
    environment = {name: value for name, value in os.environ.items() if name != "GOLDFOLD_GOALS"}
    output = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.count("next: ") == 1 and output.splitlines()[-1] == 'next: goldfold train --set "tune.trials=0"'


def test_after_a_blend_comes_the_report_and_what_scores_it(tmp_path: Path) -> None:
    assert line("blend", work=tmp_path) == "next: make report"
    (tmp_path / "raw" / "private").mkdir(parents=True)
    assert line("blend", work=tmp_path) == "next: make report or make grade"
    assert line("blend", work=tmp_path, sets="competition.slug=x") == "next: make report or make submit"


def test_a_part_of_a_stage_names_nothing_and_every_named_verb_exists() -> None:
    assert line("train", member="cnn") == line("train", fold="0") == ""
    assert {verb.next for verb in VERBS.values()} - {""} <= VERBS.keys()
