"""Every kept input of the fuzzers, whole and cut, is read or refused by a UserError."""

from pathlib import Path

import pytest
from readers import READERS, tried

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", READERS)
def test_every_kept_input_is_read_or_refused_in_one_sentence(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files
    for file in files:
        data = file.read_bytes()
        for end in {len(data), len(data) // 2, len(data) - 1, 0}:
            tried(name, data[: max(end, 0)])
