"""Columns of train.csv and test.csv beside the features of photos: joined by id, scaled without labels, wrong ones refused."""

from pathlib import Path

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.prepare.columns import MOST_VALUES, encoded_columns

IDS = np.array(["c", "a", "b", "external/1"])


def encoded(folder: Path, text: str, *names: str) -> list[list[float]]:
    (folder / "columns.csv").write_text(text)
    return encoded_columns(folder, names, IDS).tolist()


def test_numbers_are_scaled_and_joined_by_id_and_an_empty_cell_has_the_mean_and_a_mark(tmp_path: Path) -> None:
    assert encoded(tmp_path, "image,age,n\na,10,0\nb,,0\nc,30,4\n", "age", "n") == [
        [1.0, 0.0, 1.0, 0.0],  # c: the age, whether it is empty, n, whether it is empty
        [0.0, 0.0, 0.0, 0.0],
        [0.5, 1.0, 0.0, 0.0],
        [0.5, 1.0, pytest.approx(1 / 3), 1.0],
    ]


def test_each_text_is_a_feature_and_so_is_an_empty_cell(tmp_path: Path) -> None:
    table = "image,site\na,leaf\nb,stem\nc,leaf\n"
    assert encoded(tmp_path, table, "site") == [[0, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_a_column_that_does_not_exist_or_is_different_in_every_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'size' was found.*\('age'\)"):
        encoded(tmp_path, "image,age\na,1\n", "size")
    with pytest.raises(UserError, match=f"column 'name' has {MOST_VALUES + 1} different texts"):
        encoded(tmp_path, "image,name\n" + "".join(f"{n},x{n}\n" for n in range(MOST_VALUES + 1)), "name")
    (tmp_path / "columns.csv").unlink()
    with pytest.raises(UserError, match="the prepared data have none"):
        encoded_columns(tmp_path, ["age"], IDS)
