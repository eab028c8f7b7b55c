"""docs/troubleshooting.md has every error sentence of the source, and every sentence says what to do or what was expected."""

from builders import ROOT
from troubleshooting import PAGE, SECTIONS, files_of, page, sentences_in


def test_the_page_has_every_error_sentence() -> None:
    missing = [line for line in page().splitlines() if line not in PAGE.read_text(encoding="utf-8").splitlines()]
    assert missing == [], "run `python tests/troubleshooting.py`"
    assert page() == PAGE.read_text(encoding="utf-8"), "run `python tests/troubleshooting.py`"


def test_every_source_file_is_in_one_section() -> None:
    files = [file for prefix in SECTIONS for file in files_of(prefix)]
    expected = {ROOT / "goldfold.py", *(ROOT / "competition").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")}
    assert len(files) == len(set(files)) and expected - set(files) <= {ROOT / "competition" / "__init__.py"}
    assert sum(len(list(sentences_in(file))) for file in files) > 300
