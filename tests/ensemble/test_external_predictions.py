import numpy as np
import pandas as pd
import pytest

from competition.config.errors import UserError
from competition.ensemble.external_predictions import OurRows, load_external

CLASSES = ["cat", "dog", "eel"]
TRAIN, TEST = np.array([f"a{n}" for n in range(40)]), np.array([f"t{n}" for n in range(30)])


def probs(rows, sure, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(3) / sure, rows).astype(np.float32)


def csv(path, ids, table):
    pd.DataFrame(table, columns=CLASSES).assign(id=ids)[["eel", "id", "cat", "dog"]].to_csv(path, index=False)
    return path


def load(oof, test, declared="f" * 64):
    rows = OurRows(CLASSES, TRAIN, TEST, np.zeros(len(TRAIN), int), "f" * 64)
    return load_external(oof, test if isinstance(test, list) else [test], rows, declared)


def test_csv_and_npz_give_equal_predictions_for_any_order_of_rows_and_columns(tmp_path):
    oof_probs, test_probs = probs(40, 20), probs(30, 20, 1)  # as sure as a fine-tuned network
    order = np.random.default_rng(0).permutation(40)
    by_csv = load(csv(tmp_path / "o.csv", TRAIN[order], oof_probs[order]), csv(tmp_path / "t.csv", TEST, test_probs))
    turned = oof_probs[order][:, [2, 0, 1]]
    np.savez(tmp_path / "o.npz", ids=TRAIN[order], probs=turned, classes=np.array(["eel", "cat", "dog"]))
    np.savez(tmp_path / "t.npz", ids=TEST, probs=test_probs, classes=CLASSES)
    by_npz = load(tmp_path / "o.npz", tmp_path / "t.npz")
    for result in (by_csv, by_npz):
        assert result.oof.ids.tolist() == TRAIN.tolist()
        np.testing.assert_allclose(result.oof.view("identity"), oof_probs, rtol=1e-6)
        np.testing.assert_allclose(result.test.view("identity"), test_probs, rtol=1e-6)
        assert result.notes == ()


def test_rows_of_other_ids_are_left_out_and_unknown_or_different_folds_are_noted(tmp_path):
    both = csv(tmp_path / "o.csv", [*TRAIN, *TEST, "zzz"], probs(71, 1))
    loaded = load(both, both)
    assert (loaded.oof.ids.tolist(), loaded.test.ids.tolist()) == (TRAIN.tolist(), TEST.tolist())
    files = csv(tmp_path / "o.csv", TRAIN, probs(40, 1)), csv(tmp_path / "t.csv", TEST, probs(30, 1))
    for declared, note in (("", "folds unknown"), ("0" * 64, "other folds than ours")):
        assert note in load(*files, declared=declared).notes[0]


def test_the_mean_of_the_test_files_of_the_fold_models_is_blended(tmp_path):
    oof, folds = csv(tmp_path / "o.csv", TRAIN, probs(40, 1)), [probs(30, 1, seed) for seed in range(3)]
    files = [csv(tmp_path / f"t{k}.csv", TEST[::-1], table[::-1]) for k, table in enumerate(folds)]
    np.savez(tmp_path / "t.npz", ids=TEST, probs=np.stack(folds), folds=np.arange(3), classes=CLASSES)
    for test in (files, [tmp_path / "t.npz"]):
        np.testing.assert_allclose(load(oof, test).test.view("identity"), np.mean(folds, 0), rtol=1e-5)
    np.savez(tmp_path / "mean.npz", ids=TEST, probs=np.mean(folds, 0), folds=np.arange(3), classes=CLASSES)
    np.testing.assert_allclose(load(oof, tmp_path / "mean.npz").test.view("identity"), np.mean(folds, 0), rtol=1e-5)
    np.savez(tmp_path / "o.npz", ids=TRAIN, probs=np.stack([probs(40, 1)] * 2), folds=np.arange(2), classes=CLASSES)
    with pytest.raises(UserError, match=r"o\.npz has the array 'folds'; expected one out-of-fold prediction"):
        load(tmp_path / "o.npz", files)
    np.savez(tmp_path / "t.npz", ids=TEST, probs=np.stack(folds), folds=np.arange(2), classes=CLASSES)
    with pytest.raises(UserError, match=r"t\.npz: probs has the shape \(3, 30, 3\), .*; expected"):
        load(oof, tmp_path / "t.npz")


def test_errors_in_the_files_name_the_file(tmp_path):
    good, test = csv(tmp_path / "o.csv", TRAIN, probs(40, 1)), csv(tmp_path / "t.csv", TEST, probs(30, 1))
    (tmp_path / "o.pkl").write_text("")
    for oof, of_test, message in (
        (good, good, r"o\.csv: expected the ids of the test rows, found those of the training rows: are oof and test exchanged"),
        (test, good, r"t\.csv: expected the ids of the training rows, found those of the test rows: are oof and test exchanged"),
        (csv(tmp_path / "x.csv", [f"{n}.png" for n in TRAIN], probs(40, 1)), test, "there are other ids, first a0.png, a1.png"),
        (csv(tmp_path / "few.csv", TRAIN[2:], probs(38, 1)), test, "2 of 40 ids have no prediction, first a0, a1; predict them again"),
        (tmp_path / "gone.csv", test, r"gone\.csv does not exist"),
        (tmp_path / "o.pkl", test, r"expected \.csv or \.npz; np.savez.file, ids=ids, probs=probs, classes=names. writes"),
        (csv(tmp_path / "logits.csv", TRAIN, 5 * probs(40, 1)), test, "40 rows without probabilities .*apply a softmax"),
        (csv(tmp_path / "percent.csv", TRAIN, 100 * probs(40, 1)), test, "first a0, a1, a2: divide"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            load(oof, of_test)


PROBS, PICKLED = probs(40, 1), np.array([{}], dtype=object)
WRONG_ARRAYS = [
    ({"ids": TRAIN, "probs": PROBS}, "expected the arrays classes, ids, probs, found ids, probs"),
    ({"classes": CLASSES, "probs": PROBS}, r"found classes, probs: np.savez\(file, ids=ids, .* names are the classes"),
    ({"ids": TRAIN, "probs": PROBS[:, :2], "classes": list("ab")}, "classes 'a', 'b'; expected the 3 of"),
    ({"ids": TRAIN, "probs": PROBS[:, :2], "classes": CLASSES}, r"shape \(40, 2\), for ids \(40,\) and 3 classes"),
    ({"ids": PICKLED, "probs": PROBS}, "is not a readable .npz .*without pickled objects"),
]


@pytest.mark.parametrize(("arrays", "message"), WRONG_ARRAYS)
def test_arrays_that_cannot_be_joined_or_read_safely_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "o.npz", **arrays)
    with pytest.raises(UserError, match=rf"o\.npz.*{message}"):
        load(tmp_path / "o.npz", csv(tmp_path / "t.csv", TEST, probs(30, 1)))


def test_a_regression_may_have_the_values_as_scikit_learn_gives_them(tmp_path):
    values = np.arange(40.0)
    rows = OurRows(("age",), TRAIN, TEST, values, "f" * 64, "regression")
    np.savez(tmp_path / "o.npz", ids=TRAIN, probs=values)
    np.savez(tmp_path / "t.npz", ids=TEST, probs=np.array([values[:30], values[:30] + 2]), folds=np.arange(2))
    loaded = load_external(tmp_path / "o.npz", [tmp_path / "t.npz"], rows, "f" * 64)
    assert loaded.oof.probs[:, 0, 0].tolist() == values.tolist()
    assert loaded.test.probs[:, 0, 0].tolist() == (values[:30] + 1).tolist()  # the mean over fold models


def test_ids_that_lost_their_leading_zeros_are_told_to_be_written_as_text(tmp_path):
    ids = np.array([f"{n:05}" for n in [0, *range(9_991, 10_030)]])
    rows, test = OurRows(CLASSES, ids, TEST, np.zeros(40, int), ""), [csv(tmp_path / "t.csv", TEST, probs(30, 1))]
    message = "10 of 40 ids have no prediction, first 00000, 09991, .*first 0, 9991, .*without the leading zeros: write ids as text"
    with pytest.raises(UserError, match=message):
        load_external(csv(tmp_path / "o.csv", ids.astype(int), probs(40, 1)), test, rows, "")
    with pytest.raises(UserError, match=r"first 00000, 09991, 09992; there are other ids, first x$"):
        load_external(csv(tmp_path / "o.csv", [*ids[10:], "x"], probs(31, 1)), test, rows, "")


def test_csv_columns_are_found_by_name_and_problems_of_the_file_are_named(tmp_path):
    file, none = tmp_path / "t.csv", np.zeros(0, str)
    rows = OurRows(["cat", "dog"], np.array(["NA", "007"]), none, np.zeros(2, int), "")
    file.write_text("dog,id,cat\n0.25,NA,0.75\n0.5,007,0.5\n")  # the ids are strings, neither missing nor a number
    oof = load_external(file, [], rows, "").oof
    assert oof.ids.tolist() == ["NA", "007"] and oof.view("identity").tolist() == [[0.75, 0.25], [0.5, 0.5]]
    named_id = OurRows(["cat", "id"], np.array(["007"]), none, np.zeros(1, int), "")
    file.write_text("row_id,cat,id\n007,0.25,0.75\n")
    assert load_external(file, [], named_id, "").oof.ids.tolist() == ["007"]
    for text, message in (
        (
            "id,cat,bird\nNA,0.75,0.25\n",
            "^[^(]* has the columns 'id', 'cat', 'bird'; expected 'id' and .* they differ in 'bird', 'dog': rename the columns",
        ),
        ("id;cat;dog\nNA;0,75;0,25\n", "separated by commas .to_csv without sep and decimal."),
        ("id,cat,dog\nNA,,0.25\n007,0.5,0.5\n", "1 row without probabilities .*, first NA: remove NaN and infinity"),
        ("id,cat,dog,fold\nNA,0.75,0.25,0\n", "they differ in 'fold': remove them"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            load_external(file, [], rows, "")
