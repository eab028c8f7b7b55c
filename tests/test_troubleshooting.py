"""docs/troubleshooting.md has every error sentence of the source, and every sentence says what to do or what was expected."""

import pytest
from builders import ROOT
from kaggle_api.test_explain import MESSAGES
from troubleshooting import PAGE, SECTIONS, files_of, page, sentences_in

from competition.config.errors import UserError
from pipelines.doctor import explanation_lines
from pipelines.own_errors import PAGE as PAGE_OF_DOCTOR
from pipelines.own_errors import SURE, VALUE, find_own_error, sentences


def test_the_page_has_every_error_sentence() -> None:
    missing = [line for line in page().splitlines() if line not in PAGE.read_text(encoding="utf-8").splitlines()]
    assert missing == [], "run `python tests/troubleshooting.py`"
    assert page() == PAGE.read_text(encoding="utf-8"), "run `python tests/troubleshooting.py`"


def test_every_source_file_is_in_one_section() -> None:
    files = [file for prefix in SECTIONS for file in files_of(prefix)]
    expected = {ROOT / "goldfold.py", *(ROOT / "competition").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")}
    assert len(files) == len(set(files)) and expected - set(files) <= {ROOT / "competition" / "__init__.py"}
    assert sum(len(list(sentences_in(file))) for file in files) > 300


def filled(sentence: str) -> str:
    """The sentence with something in the place of each value."""
    return VALUE.sub(lambda value: "; did you mean 'x'?" if value[0] == "<did_you_mean>" else " x.csv ", sentence)


def test_every_sentence_of_the_page_is_looked_up_with_its_values_and_its_guide() -> None:
    entries = list(sentences(PAGE_OF_DOCTOR))
    assert len(entries) > 400 and all((ROOT / "docs" / guide).is_file() for _, guide, _ in entries)
    for _, _, sentence in entries:
        own = find_own_error(f"$ make train\ngoldfold: params.yaml line 3: {filled(sentence)}\n")
        assert own is not None and own.share == 1, sentence
        assert own.sentence.endswith(" ".join(filled(sentence).split())[-20:]), sentence


def test_a_sentence_that_was_cut_off_is_looked_up_too() -> None:
    own = find_own_error("goldfold: work/digits/data/manifest.json is missing: this stage needs the results")
    assert own is not None and own.sentence.endswith("this stage needs the results of `make <verb>`; run it first")
    assert own.fix == "run it first" and own.section == "Verbs"


def test_an_unknown_key_gets_the_suggestion_of_its_message() -> None:
    meaning, why, fix = explanation_lines(
        "goldfold: params.yaml line 34: train.epoch: unknown key; did you mean 'epochs'?"
    )
    assert meaning == "found: unknown key; did you mean 'epochs'?"
    assert "an error of goldfold (Parameters, SET and plugins)" in why and fix == "fix:   did you mean 'epochs'?"


def test_a_full_disk_is_an_error_of_goldfold_and_an_unexpected_error_is_explained_by_what_it_says() -> None:
    text = "goldfold: the disk is full; complete results and the last checkpoint are intact: free disk space, then run the same"
    meaning, _, fix = explanation_lines(f"{text} command again ([Errno 28] No space left on device)")
    assert (
        meaning.startswith("found: the disk is full; complete results") and "free disk space, then run the same" in fix
    )
    unexpected = "goldfold: ModuleNotFoundError: No module named 'six'\nUnexpected error; DEBUG=1 shows the traceback."
    assert explanation_lines(unexpected)[2] == "fix:   pip install six."


@pytest.mark.parametrize("text", MESSAGES)
def test_an_error_of_another_program_is_not_taken_for_one_of_goldfold(text: str) -> None:
    own = find_own_error(f"Traceback (most recent call last):\n  File x\n{text}\n")
    assert own is None or own.share < SURE
    assert MESSAGES[text] in explanation_lines(text)[1]


@pytest.mark.parametrize(
    "text",
    ["", "ZeroDivisionError: division by zero", "FileNotFoundError: [Errno 2] No such file or directory: 'a.json'"],
)
def test_an_error_that_nobody_knows_is_not_explained(text: str) -> None:
    assert find_own_error(text) is None
    with pytest.raises(UserError, match="unknown error; paste its last lines"):
        explanation_lines(text)
