"""Each stage ends with the command that usually follows it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from builders import ROOT, params

from competition.config.params_file import BUDGET_FILE
from competition.workspace.workspace import Workspace
from pipelines.terminal.cli import is_last_goal
from pipelines.terminal.next_command import next_line
from pipelines.terminal.options import Options
from pipelines.terminal.output import GOALS, as_called, with_params
from pipelines.terminal.runner import Job
from pipelines.terminal.verbs import VERBS

PARAMS = ROOT / "params.yaml"


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)


def line(
    verb: str,
    with_make: bool = True,
    file: Path = PARAMS,
    work: Path = Path("none"),
    sets: str = "",
    given: str = "",
    **options,
) -> str:
    """sets: overrides of the parameters.  given: SET of the command."""
    with patch.dict(os.environ, {GOALS: ""} if with_make else {}):
        if not with_make:
            os.environ.pop(GOALS, None)
        return next_line(verb, VERBS[verb].next, params(sets), Options(file, given, **options), work)


def test_the_next_command_is_that_of_make_or_of_goldfold_with_the_same_parameters() -> None:
    assert line("prepare") == "next: make train"
    assert line("prepare", False) == "next: goldfold train"
    assert line("train", file=ROOT / "recipes" / "plants.yaml") == "next: make predict PARAMS=recipes/plants.yaml"
    assert line("train", False, Path("/elsewhere/x.yaml")) == "next: goldfold predict --params /elsewhere/x.yaml"
    assert line("train", file=Path("/my photos/x's.yaml")) == """next: make predict PARAMS='/my photos/x'"'"'s.yaml'"""


def test_the_next_command_has_the_same_overrides() -> None:
    text = line("train", given="train.epochs=3  predict.views=[identity]")
    assert text == 'next: make predict SET="train.epochs=3  predict.views=[identity]"'
    assert line("train", False, given="train.epochs=3") == 'next: goldfold predict --set "train.epochs=3"'
    quoted = """predict.views="[identity, flip_lr]" competition.slug='a'"""
    (word,) = shlex.split(line("train", given=quoted))[3:]
    assert word == f"SET={quoted}"


def test_the_file_of_a_budget_states_the_overrides_itself() -> None:
    file = ROOT / "work" / "photos" / BUDGET_FILE
    sets = f"members.cnn.weights={'long/' * 50}"
    assert line("blend", file=file, given=sets) == "next: make report PARAMS=work/photos/budget/params.yaml"
    assert line("blend", file=file, given="tune.storage=redis://ada:s3cret-word@host/1").endswith('SET="..."')


@pytest.mark.parametrize(
    "sets",
    [
        "tune.storage=redis://ada:s3cret-word@host/1",  # few characters
        "train.epochs=3 'convert.beam_options=[--db_password=s3cret-word]'",
        f"members.cnn.weights={'long/' * 50}",
    ],
)
def test_overrides_with_a_secret_or_of_many_characters_are_not_repeated(sets: str) -> None:
    assert line("tune", given=sets) == 'next: make train SET="..."'
    assert line("tune", False, given=sets) == 'next: goldfold train --set "..."'


@pytest.mark.parametrize(
    ("goals", "verb", "is_last"),
    [
        (None, "train", True),
        ("download", "download", True),
        ("download folds", "download", False),
        ("download folds", "folds", True),
        ("train predict submit", "predict", False),
    ],
)
def test_only_the_last_target_of_make_names_the_next_command(goals, verb, is_last, monkeypatch) -> None:
    monkeypatch.delenv(GOALS, raising=False)
    if goals is not None:
        monkeypatch.setenv(GOALS, goals)
    assert is_last_goal(verb) == is_last


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`make download train` makes it again", "`make download train PARAMS=photos.yaml` makes it again"),
        ("`make train FOLD=0`", "`make train PARAMS=photos.yaml FOLD=0`"),
        ("next: make predict PARAMS=b.yaml or make grade", "next: make predict PARAMS=b.yaml or make grade"),
        ("it makes a blend", "it makes a blend"),
    ],
)
def test_a_printed_command_names_the_parameter_file(message: str, shown: str) -> None:
    assert with_params(message, "photos.yaml") == shown
    assert with_params(message, "params.yaml") == message


def test_a_printed_command_repeats_set_unless_it_has_its_own_and_shows_no_secret() -> None:
    assert (
        with_params("`make train FOLD=0`", "params.yaml", "train.epochs=3")
        == '`make train SET="train.epochs=3" FOLD=0`'
    )
    for own in ('`make tune SET="tune.trials=9"`', f"`make report PARAMS=work/photos/{BUDGET_FILE}`"):
        assert with_params(own, "params.yaml", "train.epochs=3") == own
    assert with_params("`make tune`", "params.yaml", "tune.storage=redis://me:word@host/1") == '`make tune SET="..."`'


def test_the_commands_of_a_message_repeat_set(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv(GOALS, "runs")
    options = Options(PARAMS, "train.epochs=3")
    Job(Workspace(tmp_path, params()), options, tmp_path).echo("runs: `make prune` lists runs that nothing uses")
    assert capsys.readouterr().out == 'runs: `make prune SET="train.epochs=3"` lists runs that nothing uses\n'


def test_the_commands_of_an_error_name_the_parameter_file(tmp_path: Path) -> None:
    (tmp_path / "a b.yaml").write_text(f"extends: {ROOT}/params.yaml\n")
    stage = ["prepare", "--work", str(tmp_path), "--submissions", str(tmp_path), "--params", str(tmp_path / "a b.yaml")]
    environment = os.environ | {GOALS: "prepare"}
    process = [sys.executable, "-m", "pipelines", *stage]
    result = subprocess.run(process, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 1 and f"`make download PARAMS='{tmp_path}/a b.yaml'`" in result.stderr


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("it is stale; make download FORCE=1 fetches it", "it is stale; goldfold download --force fetches it"),
        ("run make convert again, then make download", "run goldfold convert again, then goldfold download"),
        ("`make adopt RUN=...` or make kernel-status", "`goldfold adopt --run ...` or goldfold kernel-status"),
        ("make trains, make sure, make tests, `make beam`", "make trains, make sure, make tests, `make beam`"),
        (
            "`make train MEMBER=cnn FOLD=2`, `make kernel submit`",
            "`goldfold train --member cnn --fold 2`, `goldfold kernel + submit`",
        ),
        (
            '`make tune SET="a.b=1"`; FORCE=1; KERAS_BACKEND=jax',
            '`goldfold tune --set "a.b=1"`; --force; KERAS_BACKEND=jax',
        ),
    ],
)
def test_a_command_of_make_is_shown_in_the_words_of_the_caller(message: str, shown: str, monkeypatch) -> None:
    monkeypatch.setenv(GOALS, "train")
    assert as_called(message) == message
    monkeypatch.delenv(GOALS)
    assert as_called(message) == shown


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
    text = line("blend", work=tmp_path, sets="competition.slug=x", given="train.epochs=3")
    assert text == 'next: make report SET="train.epochs=3" or make submit SET="train.epochs=3"'


def test_after_an_export_of_one_fold_model_comes_the_server_of_the_same_part() -> None:
    file = ROOT / "recipes" / "plants.yaml"
    text = "next: make serve PARAMS=recipes/plants.yaml MEMBER=small FOLD=0,2"
    assert line("export", member="small", fold="0,2", file=file) == text
    assert line("export", False, member="small", fold="0") == "next: goldfold serve --member small --fold 0"


def test_a_part_of_a_stage_names_nothing_and_every_named_verb_exists() -> None:
    assert line("train", member="cnn") == line("train", fold="0") == line("folds") == ""
    assert line("tune", join=True) == ""  # a worker; the process that leads the study names it
    assert {verb.next for verb in VERBS.values()} - {""} <= VERBS.keys()
