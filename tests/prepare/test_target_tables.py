"""What the table says is predicted, one class, several labels, grades or numbers, and its columns beside the photos."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import competition, params

from competition.config.errors import UserError
from competition.prepare.adapter_types import Competition, with_metric
from competition.prepare.extra_columns import MOST_VALUES, encoded_columns
from competition.prepare.targets import check_training

IDS = [f"i{n:02}" for n in range(12)]
TEST_IDS = ["t0", "t1"]


def table(header: str, cells: list[str]) -> str:
    return "\n".join([header, *(f"{id_},{cell}" for id_, cell in zip(IDS, cells, strict=True))]) + "\n"


@pytest.fixture
def read(make_source, read):
    """read(train.csv, sample, ...) -> (competition, label numbers of the training rows), through the folder adapter."""

    def read_tables(train: str, sample: str = "", **changes: object) -> tuple[Competition, np.ndarray]:
        test = {} if sample else {"test.csv": f"{train.split(',')[0]}\nt0\nt1\n"}
        tables = {"train.csv": train, **({"sample_submission.csv": sample} if sample else test)}
        competition, rows = read(make_source(tables, [f"{name}.png" for name in [*IDS, *TEST_IDS]]), **changes)
        return competition, np.array([row.label for row in rows if row.part == "train"])

    return read_tables


COLUMNS = table("image_id,scab,rust", ["1,0", "0,1", "1,1", "0,0"] * 3)
LISTS = table("image,labels", ["scab", "rust scab", "healthy", "rust"] * 3)
GRADES, SCORES = table("id,grade", ["0", "1", "3", "4"] * 3), table("id,score", ["0.5", "1.25", "-3", "4"] * 3)
SAMPLE = "image,scab,rust,healthy\nt0,0.5,0.5,0.5\nt1,0.5,0.5,0.5\n"
# Name -> (train.csv, sample submission, settings, what is detected, the first targets, the note).
DETECTED = {
    "columns of 0 and 1 with several ones": (
        COLUMNS, "", {},
        {"target": "multi", "classes": ("scab", "rust"), "metric": "multilabel_mean_column_auc", "predicts": "probabilities"},
        [[1, 0], [0, 1], [1, 1], [0, 0]],
        "ids are in column 'image_id', 2 label columns hold 0 and 1 with several ones in 3 rows: multi-label",
    ),
    "a sample with one column per class orders the labels of lists": (
        LISTS, SAMPLE, {}, {"classes": ("scab", "rust", "healthy"), "predicts": "probabilities"}, [[1, 0, 0], [1, 1, 0]], "",
    ),
    "empty lists are allowed where the table has one": (
        LISTS.replace("healthy", ""), "", {}, {"allows_empty_lists": True}, [[0, 1], [1, 1], [0, 0]],
        "several in 3 rows and none in 3: multi-label",
    ),
    "class names that share their words may be lists": (
        table("image,labels", ["blue rose", "blue tulip", "red rose", "red tulip", "sea lily", "wild iris"] * 2), "", {},
        {"target": "single"}, [0, 1, 2, 3, 4, 5],
        "",
    ),
    "class names with blanks": (
        table("image,labels", ["pink primrose", "globe thistle", "spear thistle", "iris"] * 3), "", {}, {"target": "single"}, [2], "",
    ),
    "classes of the sample that look like a list": (
        table("image,labels", ["red car", "red", "car", "blue"] * 3), "image,red car,red,car,blue\nt0,0,0,0,1\nt1,0,0,0,1\n", {},
        {"target": "single", "prediction_columns": ("red car", "red", "car", "blue")}, [0, 1, 2, 3], "",
    ),
    "whole numbers may be classes": (table("image,labels", ["7", "7.0", "8", "9"] * 3), "", {}, {"target": "single"}, [0, 1, 2, 3], ""),
    "where a bar separates labels, a comma and a blank do not": (
        table("image,labels", ['"reddish, warm|blue"', "blue", "bright|blue", '"reddish, warm|bright"'] * 3), "", {},
        {"classes": ("blue", "bright", "reddish, warm"), "list_separator": "|"}, [[1, 0, 1], [1, 0, 0]], "",
    ),
    "numbers that are not whole": (
        SCORES, "", {}, {"target": "regression", "metric": "rmse"}, [0.5, 1.25, -3, 4],
        "ids are in column 'id', column 'score' holds numbers from -3 to 4: regression",
    ),
    "numbers with a decimal comma, if the user says so": (
        SCORES.replace(",", ";").replace(".", ","), "id,score\nt0,0\nt1,0\n", {"target": "regression"}, {}, [0.5, 1.25, -3, 4], "",
    ),
    "whole numbers, if the user says so": (
        table("id,score", [str(n) for n in range(12)]), "id,score\nt0,50\nt1,50\n", {"target": "regression"},
        {"target": "regression", "predicts": "value", "prediction_columns": ("score",)}, [0, 1, 2], "",
    ),
    "grades, if the metric says so; 2, which does not occur, keeps its place": (
        GRADES, "", {"metric": "quadratic_kappa"}, {"target": "ordinal", "classes": tuple("01234"), "predicts": "label"},
        [0, 1, 3, 4], "column 'grade' holds grades from 0 to 4: ordinal",
    ),
}  # fmt: skip


for separator in (" ", "; ", ","):
    DETECTED[f"lists of labels separated by {separator!r}"] = (
        LISTS.replace("rust scab", f'"rust{separator}scab"'), "", {},
        {"target": "multi", "classes": ("healthy", "rust", "scab"), "metric": "multilabel_macro_f1", "predicts": "label",
         "list_separator": separator, "is_label_list": True}, [[0, 0, 1], [0, 1, 1], [1, 0, 0]], "",
    )  # fmt: skip


@pytest.mark.parametrize("name", DETECTED)
def test_the_target_and_the_form_of_a_submission_are_detected(read, name):
    train, sample, settings, expected, targets, note = DETECTED[name]
    competition, labels = read(train, sample, **settings)
    assert {field: getattr(competition, field) for field in expected} == expected
    assert competition.targets.of(labels)[: len(targets)].tolist() == targets
    assert any(note in one for one in competition.notes)


def test_label_sets_are_written_with_a_separator_that_no_class_holds():
    for names, text in ((("rot", "scab"), "rot scab"), (("rot", "leaf, curled"), "rot|leaf, curled")):
        several = competition(names, target="multi", prediction_columns=names, label_targets=("11",))
        assert several.as_table_values(np.array([[True, True], [False, True]])) == [text, names[1]]


@pytest.mark.parametrize(
    ("train", "changes", "match"),
    [
        (COLUMNS, {"target": "single"}, "6 rows not one-hot"),
        (LISTS, {"target": "regression"}, "12 cells of column 'labels' are not numbers, 'scab', 'rust scab'"),
        (COLUMNS.replace("1,1", "1,0.3"), {"target": "multi"}, "do not all hold 0 and 1"),
        (table("id,g", ["0.5", "1", "2"] * 4), {"target": "ordinal"}, "ordinal needs 2 to 100 whole grades"),
    ],
)
def test_what_does_not_fit_is_answered_in_one_sentence(read, train, changes, match):
    with pytest.raises(UserError, match=match):
        read(train, **changes)


def test_a_description_survives_its_file_and_single_labels_add_nothing_to_it(read, tmp_path):
    competition, _ = read(LISTS)
    assert competition.needs_a_label
    (tmp_path / "c.json").write_bytes(competition.json_bytes())
    assert Competition.load(tmp_path / "c.json") == competition
    single = Competition("f", "", ("a", "b"), "macro_f1", "label", "id", ("label",), ("0", "1"))
    (tmp_path / "c.json").write_bytes(single.json_bytes())
    assert "target" not in (tmp_path / "c.json").read_text() and Competition.load(tmp_path / "c.json") == single


def test_data_depend_on_the_target_that_is_set_or_implied_by_the_metric_and_not_on_the_metric(make_settings):
    assert "target" not in make_settings().of_raw_files()
    assert make_settings(group_column="object").of_raw_files() == make_settings().of_raw_files()
    assert make_settings(target="multi").of_raw_files()["target"] == "multi"
    kept = {"accuracy": "", "quadratic_kappa": "quadratic_kappa", "mae": "rmse", "samples_f1": "multilabel_macro_f1"}
    for metric, of_data in kept.items():  # accuracy says nothing about the target
        assert make_settings(metric=metric).of_data().metric == of_data
        assert make_settings(metric=metric, target="multi").of_data().metric == ""


def test_another_metric_changes_the_form_of_a_multi_label_submission_without_new_data(read):
    competition, _ = read(COLUMNS)
    assert with_metric(competition, "") == competition
    decisions = with_metric(competition, "macro_f1")
    assert (decisions.metric, decisions.predicts) == ("multilabel_macro_f1", "label")
    back = with_metric(decisions, "mean_average_precision")
    assert (back.metric, back.predicts) == ("mean_average_precision", "probabilities")


def test_training_parameters_that_a_target_has_no_meaning_for_are_refused():
    train = params().train
    with pytest.raises(UserError, match=r"cnn.train.class_weights: balanced was found; it is not defined for multi"):
        check_training("multi", "cnn", replace(train, class_weights="balanced"))
    with pytest.raises(UserError, match=r"members.cnn.train.cutmix: 1.0"):
        check_training("regression", "cnn", replace(train, cutmix=1.0))
    check_training("multi", "cnn", replace(train, cutmix=1.0, focal_gamma=2.0, label_smoothing=0.1))
    check_training("single", "cnn", replace(train, class_weights="balanced", probe=True))


ROW_IDS = np.array(["c", "a", "b", "external/1"])


def encoded(folder: Path, text: str, *names: str) -> list[list[float]]:
    (folder / "columns.csv").write_text(text)
    return encoded_columns(folder, names, ROW_IDS).tolist()


def test_numbers_are_scaled_texts_are_features_both_joined_by_id_and_an_empty_cell_has_a_mark(tmp_path: Path) -> None:
    assert encoded(tmp_path, "image,age,n\na,10,0\nb,,0\nc,30,4\n", "age", "n") == [
        [1.0, 0.0, 1.0, 0.0],  # c: the age, whether it is empty, n, whether it is empty
        [0.0, 0.0, 0.0, 0.0],
        [0.5, 1.0, 0.0, 0.0],  # an empty cell has the mean
        [0.5, 1.0, pytest.approx(1 / 3), 1.0],
    ]
    sites = encoded(tmp_path, "image,site\na,leaf\nb,stem\nc,leaf\n", "site")
    assert sites == [[0, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_a_column_that_does_not_exist_or_is_different_in_every_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'size' was found.*\('age'\)"):
        encoded(tmp_path, "image,age\na,1\n", "size")
    with pytest.raises(UserError, match=f"column 'name' has {MOST_VALUES + 1} different texts"):
        encoded(tmp_path, "image,name\n" + "".join(f"{n},x{n}\n" for n in range(MOST_VALUES + 1)), "name")
    (tmp_path / "columns.csv").unlink()
    with pytest.raises(UserError, match="the prepared data have none"):
        encoded_columns(tmp_path, ["age"], ROW_IDS)
