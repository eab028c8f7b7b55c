"""Each stage ends with the command that usually follows it, and a printed command is in the words of its caller, without a secret."""

import io
import shlex
from pathlib import Path

import pytest
from builders import ROOT, params
from make_calls import stages_of

from competition.config.params_file import BUDGET_FILE, load_params
from pipelines.terminal.cli import main
from pipelines.terminal.hosts import Hosts
from pipelines.terminal.options import Options
from pipelines.terminal.output import GOALS, as_called, print_line, with_params
from pipelines.terminal.stage import next_line, run_stage
from pipelines.terminal.verbs import VERBS


def line(verb: str, file=ROOT / "params.yaml", work=Path("none"), given="", sets="", **options) -> str:
    """given: SET of the command.  sets: overrides of the parameters."""
    return next_line(verb, VERBS[verb].next, params(sets), Options(file, given, **options), work)


def test_the_next_command_is_that_of_make_or_of_goldfold_with_the_same_parameters_and_overrides(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "raw" / "private").mkdir(parents=True)
    of_budget = ROOT / "work" / "photos" / BUDGET_FILE  # it states the overrides itself
    overridden = {"work": tmp_path, "sets": "competition.slug=x", "given": "train.epochs=3"}
    for printed, expected in (
        (line("prepare"), "next: make train"),
        (line("train", Path("/my photos/x's.yaml")), """next: make predict PARAMS='/my photos/x'"'"'s.yaml'"""),
        (line("blend", of_budget, given="train.epochs=3"), "next: make report PARAMS=work/photos/budget/params.yaml"),
        (line("blend"), "next: make report"),
        (line("blend", work=tmp_path), "next: make report or make grade"),
        (line("blend", **overridden), 'next: make report SET="train.epochs=3" or make submit SET="train.epochs=3"'),
        (line("train", member="cnn") + line("train", fold="0") + line("folds") + line("tune", join=True), ""),
    ):
        assert printed == expected
    quoted = """predict.views="[identity, flip_lr]" competition.slug='a'"""
    assert shlex.split(line("train", given=quoted))[3:] == [f"SET={quoted}"]
    monkeypatch.delenv(GOALS)
    assert line("train", Path("/elsewhere/x.yaml")) == "next: goldfold predict --params /elsewhere/x.yaml"
    assert line("train", given="train.epochs=3") == 'next: goldfold predict --set "train.epochs=3"'
    assert line("export", member="small", fold="0") == "next: goldfold serve --member small --fold 0"
    assert {verb.next for verb in VERBS.values()} - {""} <= VERBS.keys()


def test_with_members_trained_elsewhere_alone_the_next_command_is_blend(tmp_path) -> None:
    members = f"members: {{own: {{predictions: {{oof: {tmp_path}/o.csv, test: t.csv}}}}}}"
    (tmp_path / "own.yaml").write_text(f"extends: {ROOT}/params.yaml\ntune: {{members: []}}\n{members}\n")
    own = load_params(tmp_path / "own.yaml")
    for verb in ("prepare", "train"):  # the folds come first, for the models elsewhere
        assert next_line(verb, VERBS[verb].next, own, Options(), tmp_path) == "next: make folds"
    (tmp_path / "o.csv").touch()
    assert next_line("prepare", "train", own, Options(), tmp_path) == "next: make blend"


def test_overrides_with_a_secret_or_of_many_characters_are_not_repeated() -> None:
    for sets in (
        "tune.storage=redis://ada:s3cret-word@host/1",  # few characters
        "train.epochs=3 'convert.beam_options=[--db_password=s3cret-word]'",
        f"members.cnn.weights={'long/' * 50}",
    ):
        assert with_params("`make tune`", "params.yaml", sets) == '`make tune SET="..."`'


def test_verbs_of_one_command_share_the_common_options_and_only_the_last_one_names_the_next() -> None:
    common = ["--params", "x.yaml", "--set=train.epochs=3", "--verbose"]
    words = ["quota", "+", "folds", "--params", "y.yaml", "+", "runs", *common, "--member", "cnn"]
    quota, folds, runs = (stage.options for stage in stages_of((["-m", "pipelines", *words], {})))
    assert [(one.sets, one.verbose) for one in (quota, folds, runs)] == [("train.epochs=3", True)] * 3
    assert [str(one.params) for one in (quota, folds, runs)] == ["x.yaml", "y.yaml", "x.yaml"]
    for words in (["train", "+", "predict", "--hours", "0.5"], ["train", "--hours=0.5", "+", "predict"]):
        stages = stages_of((["-m", "pipelines", *words], {}))
        assert {one.name for one in stages if one.options.hours == 0.5} == {"budget", "predict", "blend"}, words
    for goals, following in (("", "report"), ("train predict", "report"), ("predict folds", "")):
        assert stages_of((["-m", "pipelines", "predict"], {GOALS: goals}))[-1].following == following


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("folds blend", "`+` joins verbs: goldfold folds + blend"),
        ("blend PARAMS=own.yaml", "outside of make it is an option: goldfold blend --params ..."),
        ("folds --set tune.storage=redis://ada:s3cret-word@host/1 blend", "`+` joins verbs: goldfold folds + blend"),
        (
            "blend --params x.yaml tune.storage=redis://ada:s3cret@host",
            '--set: goldfold blend --set "tune.storage=..."',
        ),
    ],
)
def test_a_missing_plus_or_set_is_told_of_and_no_value_is_shown(monkeypatch, capsys, command, told) -> None:
    monkeypatch.setattr("sys.argv", ["goldfold", *command.split()])
    with pytest.raises(SystemExit):
        main()
    error = capsys.readouterr().err
    assert told in error and "s3cret" not in error


def test_the_commands_of_an_error_name_the_parameter_file(tmp_path: Path, capsys) -> None:
    (tmp_path / "a b.yaml").write_text(f"extends: {ROOT}/params.yaml\n")
    options = Options(tmp_path / "a b.yaml", work=tmp_path, submissions=tmp_path)
    with pytest.raises(SystemExit):
        run_stage("pipelines.main_job.prepare", "prepare", options, "", {}, Hosts())
    assert f"`make download PARAMS='{tmp_path}/a b.yaml'`" in capsys.readouterr().err
    stated = "next: make predict PARAMS=b.yaml SET=a or make grade"
    assert with_params(stated, "photos.yaml", "train.epochs=3") == stated


def test_a_command_of_make_is_shown_in_the_words_of_the_caller(monkeypatch) -> None:
    message = 'make sure; `make beam`, make download FORCE=1, `make kernel submit SET="a.b=1" FOLD=2`'
    assert as_called(message) == message
    monkeypatch.delenv(GOALS)
    shown = 'make sure; `make beam`, goldfold download --force, `goldfold kernel + submit --set "a.b=1" --fold 2`'
    assert as_called(message) == shown


def test_a_line_is_written_in_one_piece_because_processes_share_the_stream() -> None:
    class Recorded(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    pieces: list[str] = []
    print_line("backend: tensorflow", Recorded())
    assert [piece for piece in pieces if piece] == ["backend: tensorflow\n"]
