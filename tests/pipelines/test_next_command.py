"""Each stage ends with the command that usually follows it."""

import os
import shlex
from pathlib import Path
from unittest.mock import patch

import pytest
from builders import ROOT, params

from competition.config.params_file import BUDGET_FILE
from pipelines.terminal.cli import is_last_goal, with_common_options
from pipelines.terminal.options import Options
from pipelines.terminal.output import GOALS, as_called, with_params
from pipelines.terminal.stage import next_line, run_stage
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


def test_the_next_command_is_that_of_make_or_of_goldfold_with_the_same_parameters_and_overrides() -> None:
    assert line("prepare") == "next: make train"
    assert line("train", False, Path("/elsewhere/x.yaml")) == "next: goldfold predict --params /elsewhere/x.yaml"
    assert line("train", file=Path("/my photos/x's.yaml")) == """next: make predict PARAMS='/my photos/x'"'"'s.yaml'"""
    text = line("train", given="train.epochs=3  predict.views=[identity]")
    assert text == 'next: make predict SET="train.epochs=3  predict.views=[identity]"'
    assert line("train", False, given="train.epochs=3") == 'next: goldfold predict --set "train.epochs=3"'
    quoted = """predict.views="[identity, flip_lr]" competition.slug='a'"""
    (word,) = shlex.split(line("train", given=quoted))[3:]
    assert word == f"SET={quoted}"
    of_budget = ROOT / "work" / "photos" / BUDGET_FILE  # it states the overrides itself
    text = line("blend", file=of_budget, given="train.epochs=3")
    assert text == "next: make report PARAMS=work/photos/budget/params.yaml"


def test_verbs_of_one_command_share_the_common_options_that_one_of_them_states() -> None:
    common = ["--params", "x.yaml", "--set=train.epochs=3", "--verbose"]
    stages = [["download"], ["train", "--force"], ["predict", *common, "--allow-partial"]]
    assert with_common_options(stages) == [["download", *common], ["train", "--force", *common], stages[2]]
    different = [["train", "--params", "x.yaml"], ["train", "--params", "y.yaml"]]
    assert with_common_options(different) == different


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
        ("download folds", "folds", True),
        ("train predict submit", "predict", False),
    ],
)
def test_only_the_last_target_of_make_names_the_next_command(goals, verb, is_last, monkeypatch) -> None:
    monkeypatch.delenv(GOALS, raising=False)
    if goals is not None:
        monkeypatch.setenv(GOALS, goals)
    assert is_last_goal(verb) == is_last


def test_a_printed_command_names_the_parameter_file_and_set_unless_it_has_its_own_and_shows_no_secret() -> None:
    for message, shown in (
        ("`make download train` makes it again", "`make download train PARAMS=photos.yaml` makes it again"),
        ("next: make predict PARAMS=b.yaml or make grade", "next: make predict PARAMS=b.yaml or make grade"),
        ("it makes a blend", "it makes a blend"),
    ):
        assert with_params(message, "photos.yaml") == shown and with_params(message, "params.yaml") == message
    given, repeated = "train.epochs=3", '`make train SET="train.epochs=3" FOLD=0`'
    assert with_params("`make train FOLD=0`", "params.yaml", given) == repeated
    assert with_params(repeated, "params.yaml", given) == repeated
    assert with_params("`make tune`", "params.yaml", "tune.storage=redis://me:word@host/1") == '`make tune SET="..."`'


def test_the_commands_of_an_error_name_the_parameter_file(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv(GOALS, "prepare")
    (tmp_path / "a b.yaml").write_text(f"extends: {ROOT}/params.yaml\n")
    options = Options(tmp_path / "a b.yaml", work=tmp_path, submissions=tmp_path)
    with pytest.raises(SystemExit):
        run_stage("pipelines.main_job.prepare", "prepare", options, "", {})
    assert f"`make download PARAMS='{tmp_path}/a b.yaml'`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("it is stale; make download FORCE=1 fetches it", "it is stale; goldfold download --force fetches it"),
        ("make trains, make sure, make tests, `make beam`", "make trains, make sure, make tests, `make beam`"),
        ("`make train MEMBER=cnn FOLD=2`", "`goldfold train --member cnn --fold 2`"),
        ('`make kernel submit SET="a.b=1"`', '`goldfold kernel + submit --set "a.b=1"`'),
    ],
)
def test_a_command_of_make_is_shown_in_the_words_of_the_caller(message: str, shown: str, monkeypatch) -> None:
    monkeypatch.setenv(GOALS, "train")
    assert as_called(message) == message
    monkeypatch.delenv(GOALS)
    assert as_called(message) == shown


def test_after_a_blend_comes_the_report_and_what_scores_it(tmp_path: Path) -> None:
    assert line("blend", work=tmp_path) == "next: make report"
    (tmp_path / "raw" / "private").mkdir(parents=True)
    assert line("blend", work=tmp_path) == "next: make report or make grade"
    text = line("blend", work=tmp_path, sets="competition.slug=x", given="train.epochs=3")
    assert text == 'next: make report SET="train.epochs=3" or make submit SET="train.epochs=3"'


def test_a_part_of_a_stage_names_nothing_but_its_server_and_every_named_verb_exists() -> None:
    assert line("train", member="cnn") == line("train", fold="0") == line("folds") == ""
    assert line("tune", join=True) == ""  # a worker; the process that leads the study names it
    assert line("export", False, member="small", fold="0") == "next: goldfold serve --member small --fold 0"
    assert {verb.next for verb in VERBS.values()} - {""} <= VERBS.keys()
