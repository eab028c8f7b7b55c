"""Write a submission file in the order of sample_submission.csv, and check one by Kaggle's rules before the upload.

Ids are always text ("001", "NA" and "1e5" are kept); rows are joined by id, never by position.
Deviations that Kaggle would accept are corrected and reported; all others are errors with their count.
"""

import csv
import difflib
import hashlib
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from competition.config.errors import UserError, counted
from competition.files.manifest import atomic_write
from competition.prepare.adapter_types import Competition

if TYPE_CHECKING:  # the terminal needs no pandas
    import pandas as pd

Rows = list[list[str]]  # one list of cells per line, the header left out
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters that a spreadsheet would run; ids are never changed here


@dataclass(frozen=True)
class CheckedSubmission:
    rows: int
    mended: list[str]  # corrections of the file on disk: one sentence each, with its count
    warnings: list[str]  # unusual content that was not changed
    content: bytes  # the file to upload: UTF-8, LF, order and columns of the sample

    @property
    def digest(self) -> str:
        """sha256 of `content`."""
        return hashlib.sha256(self.content).hexdigest()


def render(ids: np.ndarray, predictions: np.ndarray, competition: Competition, sample_path: Path) -> bytes:
    """Bytes of a submission, in the order of the sample.

    ids: (N,) str, unique, exactly those of the sample.
    predictions: (N,) int class numbers when the competition predicts labels ((N, C) bool if multi-label), (N, C)
    probabilities, or (N, 1) values.
    """
    sample = _sample(sample_path, competition)
    cells = _cells(np.asarray(predictions), competition)
    if len(ids) != len(cells):
        raise UserError(
            f"{counted(len(ids), 'id')} came with {len(cells)} predictions: expected one prediction for each id."
        )
    _same_ids("the predictions", [str(i) for i in ids], str(sample_path), sample)
    by_id = dict(zip(map(str, ids), cells))
    return _csv(_header(competition), ([name, *by_id[name]] for name in sample))


def write(ids: np.ndarray, predictions: np.ndarray, competition: Competition, sample_path: Path, path: Path) -> str:
    """Write `path` atomically; return the sha256 of the file. Arguments as for `render`."""
    content = render(ids, predictions, competition, sample_path)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def check(path: Path, sample_path: Path, index_ids: Iterable[str], competition: Competition) -> CheckedSubmission:
    """Check a submission; UserError for content that Kaggle would reject or score wrongly.

    Deviations that Kaggle would accept are corrected in the returned content; the file is not changed.
    index_ids: ids of all test images, to detect a stale sample.
    """
    header, sample = _header(competition), check_sample(sample_path, index_ids, competition)
    file_header, rows, corrections = _read(path)
    if not rows:
        raise UserError(f"{path} holds 0 rows: expected {len(sample)}, one for each line of {sample_path}.")
    rows, column_corrections = _columns(path, file_header, rows, header)
    ids = [row[0] for row in rows]
    _same_ids(str(path), ids, str(sample_path), sample)
    values, value_corrections = _values(path, rows, competition)
    corrections += column_corrections + value_corrections
    moved = sum(a != b for a, b in zip(ids, sample))
    if moved:
        corrections.append(f"{counted(moved, 'row')} in another order than in {sample_path.name}; sorted like it")
    by_id = dict(zip(ids, values))
    content = _csv(header, ([name, *by_id[name]] for name in sample))
    formulas = [name for name in sample if name.startswith(FORMULA)]
    warnings = [f"{_some(formulas)} would be run as a formula by a spreadsheet; left as they are"] if formulas else []
    return CheckedSubmission(len(sample), corrections, warnings, content)


def for_spreadsheet(table: "pd.DataFrame") -> "pd.DataFrame":
    """The table with ' before every text that a spreadsheet would run. Never for a submission or a table that is joined by id."""
    return table.map(lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell)


def read_predictions(path: Path, competition: Competition) -> tuple[list[str], list[list[str]]]:
    """Ids and prediction cells of a submission, as text, in the file's order. Raises UserError for other columns."""
    header, rows, _ = _read(path)
    expected = _header(competition)
    if header != expected:
        raise UserError(f"{path} has the header {','.join(header)}, the competition expects {','.join(expected)}.")
    return [row[0] for row in rows], [row[1:] for row in rows]


def _header(competition: Competition) -> list[str]:
    return [competition.id_column, *competition.prediction_columns]


def _cells(predictions: np.ndarray, competition: Competition) -> list[list[str]]:
    classes = len(competition.classes)
    if competition.predicts == "label" and competition.target == "multi":
        return _label_sets(predictions, competition)
    if competition.predicts == "label":
        if predictions.ndim != 1 or not np.issubdtype(predictions.dtype, np.integer):
            raise UserError(f"Expected (N,) class numbers. Received: {predictions.dtype} of shape {predictions.shape}.")
        wrong = int(((predictions < 0) | (predictions >= classes)).sum())
        if wrong:
            raise UserError(f"{counted(wrong, 'predicted class number')} outside 0..{classes - 1}.")
        return [[competition.label_values[number]] for number in predictions]
    columns = len(competition.prediction_columns)
    if predictions.ndim != 2 or predictions.shape[1] != columns:
        raise UserError(f"Expected (N, {columns}) {competition.predicts}. Received: shape {predictions.shape}.")
    wrong = int((~np.isfinite(predictions)).any(axis=1).sum())
    if wrong:
        raise UserError(
            f"{counted(wrong, 'row')} of {competition.predicts} not finite: a submission cannot hold NaN or infinity."
        )
    # The shortest decimals that convert back to the same float32, so that rounding creates no ties.
    return predictions.astype(np.float32).astype(str).tolist()


def _label_sets(predictions: np.ndarray, competition: Competition) -> list[list[str]]:
    """Cells of (N, C) bool decisions: a list of labels, or one column of 0 and 1 per class."""
    if predictions.dtype != bool or predictions.shape[1:] != (len(competition.classes),):
        raise UserError(f"Expected (N, C) bool label sets. Received: {predictions.dtype} of shape {predictions.shape}.")
    if not competition.is_label_list:
        return predictions.astype(int).astype(str).tolist()
    empty = int((~predictions.any(axis=1)).sum())
    if empty and not competition.allows_empty_lists:
        raise UserError(
            f"{counted(empty, 'row')} without a label: {competition.name} expects one or more in every row."
        )
    values = np.array(competition.label_values)
    return [[competition.list_separator.join(values[row])] for row in predictions]


def _csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8")


def _sample(path: Path, competition: Competition) -> list[str]:
    """The ids of sample_submission.csv."""
    if not path.is_file():
        raise UserError(
            f"{path} is missing: expected the sample submission of {competition.name}; run `make download`."
        )
    ids, _ = read_predictions(path, competition)
    doubled = [name for name, times in Counter(ids).items() if times > 1]
    if doubled or not ids:
        problem = f"{_some(doubled)} more than once" if doubled else "0 rows"
        raise UserError(f"{path} holds {problem}: a sample lists every id once; run `make download` again.")
    return ids


def check_sample(sample_path: Path, test_ids: Iterable[str], competition: Competition) -> list[str]:
    """Return the ids of the sample; UserError if they are not the ids of the test images, each once."""
    sample, ids = _sample(sample_path, competition), [str(name) for name in test_ids]
    absent, unknown = missing_from(sample, ids), missing_from(ids, sample)
    if absent or unknown:
        lines = [f"{_some(absent)} of the test images are not in it"] if absent else []
        lines += [f"{_some(unknown)} of its rows have no test image"] if unknown else []
        raise UserError(
            f"{sample_path} is not the sample of these {counted(len(ids), 'test image')}: {' and '.join(lines)}; "
            f"{_other_form(absent, unknown) or 'it is stale: run `make download FORCE=1`'}."
        )
    return sample


def _other_form(test_ids: list[str], sample_ids: list[str]) -> str:
    """What to do if both are the same ids in two forms, with and without an ending or folders; "" otherwise."""
    forms: dict[str, Callable[[str], str]] = {
        "the ending of the file": lambda name: name.rsplit(".", 1)[0],
        "folders": lambda name: name.rsplit("/", 1)[-1],
        "folders and the ending of the file": lambda name: name.rsplit("/", 1)[-1].rsplit(".", 1)[0],
        "upper and lower case": str.casefold,
        "leading zeros": lambda name: name.lstrip("0"),
    }
    for difference, plain in forms.items():
        by_form = {plain(name): name for name in test_ids}
        if len(by_form) == len(test_ids) and by_form.keys() == {plain(name) for name in sample_ids}:
            example = sample_ids[0]
            return (
                f"they differ in {difference} only, {by_form[plain(example)]} is {example} in the sample: write the ids of the "
                "tables as in the sample, or list the test images by the sample's ids in a test.csv, then `make download`"
            )
    return ""


def _same_ids(what: str, ids: list[str], than: str, sample: list[str]) -> None:
    problems = []
    doubled = [name for name, times in Counter(ids).items() if times > 1]
    if doubled:
        problems.append(f"{_some(doubled)} more than once")
    if missing := missing_from(ids, sample):
        problems.append(f"{_some(missing)} missing")
    if extra := missing_from(sample, ids):
        problems.append(f"{_some(extra)} too many")
    if problems:
        raise UserError(
            f"{what}: expected the {counted(len(sample), 'id')} of {than}, each once. Found: {'; '.join(problems)}."
        )


def _read(path: Path) -> tuple[list[str], Rows, list[str]]:
    """(header, rows, corrections made in reading)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): expected a CSV file.") from error
    mended = []
    if data.startswith(b"\xef\xbb\xbf"):
        mended.append("1 byte order mark at the start; left out")
        data = data[3:]
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is UTF-16 ({len(data)} bytes): expected UTF-8; save it again as UTF-8.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = sum(0xDC80 <= ord(letter) <= 0xDCFF for letter in data.decode("utf-8", "surrogateescape"))
        raise UserError(
            f"{path} is not UTF-8 ({bad} bytes, the first at byte {error.start}): save it again as UTF-8."
        ) from error
    if "\0" in text:
        raise UserError(f"{path} holds {text.count(chr(0))} NUL bytes: expected CSV text, as UTF-8.")
    if returns := text.count("\r\n"):
        mended.append(f"{counted(returns, 'line end')} CR LF; now LF")
        text = text.replace("\r\n", "\n")
    lines = list(csv.reader(io.StringIO(text, newline="")))
    if not lines or not lines[0]:
        raise UserError(f"{path} has no header: expected a CSV file, it is {len(data)} bytes.")
    header, body = lines[0], [line for line in lines[1:] if line]
    ragged = [str(n) for n, line in enumerate(lines[1:], 2) if line and len(line) != len(header)]
    if ragged:
        raise UserError(
            f"{path}: {counted(len(ragged), 'line')} without the {len(header)} cells of the header: {_first(ragged)}."
        )
    return header, body, mended


def _columns(path: Path, header: list[str], rows: Rows, expected: list[str]) -> tuple[Rows, list[str]]:
    if header == expected:
        return rows, []
    if sorted(header) == sorted(expected):
        places = [header.index(name) for name in expected]
        order = f"columns stood as {','.join(header)}; put as {','.join(expected)}"
        return [[row[place] for place in places] for row in rows], [f"{len(header)} {order}"]
    message = f"{path} has the header {','.join(header)!r}: expected {','.join(expected)!r}"
    absent, extra = [n for n in expected if n not in header], [n for n in header if n not in expected]
    if len(extra) == 1 and not absent:
        number = extra[0] == "" or extra[0].startswith("Unnamed")
        hint = "; it looks like row numbers: write it with to_csv(..., index=False)" if number else ""
        raise UserError(f"{message}; 1 column too many: {extra[0]!r}{hint}.")
    if len(header) == 1 and len(expected) > 1:
        message += "; its cells are not separated by commas"
    raise UserError(f"{message}; {len(absent)} of its columns are absent, {len(extra)} are unknown.")


def _values(path: Path, rows: Rows, competition: Competition) -> tuple[list[list[str]], list[str]]:
    if competition.is_label_list:
        return _label_lists(path, rows, competition), []

    def ids_with(is_wrong: Callable[[str], bool]) -> str:
        """A count and the first ids of the rows with a wrong cell; "" if there is none."""
        ids = [row[0] for row in rows if any(map(is_wrong, row[1:]))]
        return _some(ids) if ids else ""

    if ids := ids_with(lambda cell: not cell.strip()):
        raise UserError(f"{path}: empty cells in the rows of {ids}: expected a prediction in every cell.")
    is_label = competition.predicts == "label" and competition.target != "multi"
    known = set(competition.label_values) if is_label else set()
    if ids := ids_with(lambda cell: _is_nan(cell) and cell not in known):
        raise UserError(f"{path}: NaN or infinity in the rows of {ids}: expected a prediction in every cell.")
    if is_label:
        return _labels(path, rows, competition)
    if ids := ids_with(lambda cell: _number(cell) is None):
        raise UserError(f"{path}: cells that are no number in the rows of {ids}: expected {competition.predicts}.")
    if competition.predicts == "label" and (ids := ids_with(lambda cell: float(cell) not in (0.0, 1.0))):
        raise UserError(f"{path}: numbers other than 0 and 1 in the rows of {ids}: expected 0 or 1.")
    if competition.predicts == "probabilities" and (ids := ids_with(lambda cell: not -1e-6 <= float(cell) <= 1 + 1e-6)):
        raise UserError(f"{path}: numbers outside 0..1 in the rows of {ids}: expected probabilities.")
    return [row[1:] for row in rows], []


def _label_lists(path: Path, rows: Rows, competition: Competition) -> list[list[str]]:
    """The cells of a column of lists; UserError for unknown labels, and for empty lists where none are allowed."""
    lists = [[label for label in row[1].split(competition.list_separator) if label] for row in rows]
    empty = [row[0] for row, labels in zip(rows, lists) if not labels]
    if empty and not competition.allows_empty_lists:
        raise UserError(f"{path}: no label in the rows of {_some(empty)}: expected one or more in every row.")
    known = set(competition.label_values)
    _require_no_unknown(path, [label for labels in lists for label in labels if label not in known], competition)
    return [[competition.list_separator.join(labels)] for labels in lists]


def _labels(path: Path, rows: Rows, competition: Competition) -> tuple[list[list[str]], list[str]]:
    known = set(competition.label_values)
    values, floats, unknown = [], 0, []
    for row in rows:
        label = row[1]
        if label not in known:
            number = _number(label)
            whole = str(int(number)) if number is not None and number.is_integer() else label
            if whole not in known:
                unknown.append(label)
            floats += 1
            label = whole
        values.append([label])
    _require_no_unknown(path, unknown, competition)
    return values, [f"{counted(floats, 'label')} written like '3.0'; now like '3'"] if floats else []


def _require_no_unknown(path: Path, unknown: list[str], competition: Competition) -> None:
    """Raise UserError if there are labels that the competition does not have."""
    if unknown:
        values = list(competition.label_values)
        near = difflib.get_close_matches(unknown[0], values, n=1)
        hint = f"; did you mean {near[0]!r}" if near else ""
        labels = [repr(label) for label in dict.fromkeys(unknown)]
        raise UserError(
            f"{path}: {counted(len(unknown), 'label')} outside the {len(values)} of the competition "
            f"({_first(values, 3)}): {_first(labels)}{hint}."
        )


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _is_nan(cell: str) -> bool:
    number = _number(cell)
    if number is None:
        return cell.strip().lower() in {"na", "n/a", "null", "none", "<na>"}
    return not math.isfinite(number)


def missing_from(names: list[str], expected: list[str]) -> list[str]:
    """The expected names that are not among `names`, each once, in their order."""
    present = set(names)
    return [name for name in dict.fromkeys(expected) if name not in present]


def _some(names: Sequence[str]) -> str:
    """'3 ids (a, b, c)': a count and the first names."""
    return f"{len(names)} id{'s' if len(names) != 1 else ''} ({_first(names)})"


def _first(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
