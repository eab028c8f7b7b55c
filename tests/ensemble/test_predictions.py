import numpy as np
import pytest

from competition.config.errors import UserError
from competition.ensemble.predictions import Predictions, ViewPredictions, concatenate_folds, mean_over_folds, stored_as

IDS = np.array(["b", "a", "007"])
PROBS = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]], np.float32)


def views(ids, probs, names=("identity",)):
    return ViewPredictions(np.array(ids), names, np.asarray(probs, np.float16).reshape(len(ids), len(names), -1))


def test_views_are_joined_by_id_and_an_unknown_one_is_named():  # joins in general: faults/test_properties.py
    ordered = views(["a", "b"], [[1, 0], [0, 1]])
    assert ordered.at(np.array(["a", "b"])) is ordered  # not copied
    assert ordered.at(np.array(["b", "a"])).probs[0, 0].tolist() == [0, 1]
    with pytest.raises(UserError, match="view 'rot90' was not predicted; found identity"):
        ordered.view("rot90")


BAD_ROWS = [("single", row) for row in ([0.5, 0.6], [np.nan, 1], [np.inf, 0], [-0.5, 1.5], [0, 0])]


@pytest.mark.parametrize(("target", "bad"), [*BAD_ROWS, ("multi", [1.2, 0.0]), ("regression", [np.nan])])
def test_rows_that_are_no_predictions_of_their_target_are_an_error(target, bad):
    message = r"(1 row does not hold (probabilities|finite numbers).*|NaN in 1 row), first a"
    good = PROBS[0][: len(bad)]
    with pytest.raises(UserError, match=message):
        Predictions(IDS, np.array([good, bad, good], np.float32), target)
    with pytest.raises(UserError, match=message):
        ViewPredictions(IDS, ("identity", "flip_lr"), np.array([[good, good], [good, bad], [good, good]]), target)


@pytest.mark.parametrize("target", ["single", "multi", "regression"])
def test_saved_predictions_are_loaded_unchanged_and_files_are_reproducible(tmp_path, target):
    probs = np.stack([PROBS, PROBS[:, ::-1] if target == "single" else PROBS / 3], 1).astype(stored_as(target))
    both = ViewPredictions(IDS, ("identity", "flip_lr"), probs, target)
    for name in ("v.npz", "w.npz"):
        both.save(tmp_path / name)
    assert (tmp_path / "v.npz").read_bytes() == (tmp_path / "w.npz").read_bytes()
    for mapped in (False, True):
        back = ViewPredictions.load(tmp_path / "v.npz", mapped)
        assert (back.views, back.target, back.probs.dtype) == (both.views, target, stored_as(target))
        assert np.array_equal(back.probs, probs) and back.at(IDS[::-1]).target == target
    (tmp_path / "v.npz").write_bytes((tmp_path / "v.npz").read_bytes()[:100])
    for name, problem in (("v.npz", "is not a readable"), ("gone.npz", "does not exist")):
        with pytest.raises(UserError, match=rf"{name} {problem}"):
            ViewPredictions.load(tmp_path / name)


def test_csv_columns_are_found_by_name(tmp_path):
    (tmp_path / "t.csv").write_text("dog,id,cat\n0.25,NA,0.75\n0.5,007,0.5\n")
    table = Predictions.load_csv(tmp_path / "t.csv", ["cat", "dog"])
    assert table.ids.tolist() == ["NA", "007"]  # strings, neither missing nor a number
    assert table.probs.tolist() == [[0.75, 0.25], [0.5, 0.5]]
    with pytest.raises(UserError, match="lacks 1 column, 'bird' and has 1 unknown column, 'dog'; expected 'id' and"):
        Predictions.load_csv(tmp_path / "t.csv", ["cat", "bird"])
    (tmp_path / "t.csv").write_text("id;cat;dog\nNA;0,75;0,25\n")
    with pytest.raises(UserError, match=r"separated by `;`, and its numbers may have a decimal comma; write it with"):
        Predictions.load_csv(tmp_path / "t.csv", ["cat", "dog"])
    (tmp_path / "t.csv").write_text("row_id,cat,id\n007,0.25,0.75\n")  # one class is called id
    assert Predictions.load_csv(tmp_path / "t.csv", ["cat", "id"]).ids.tolist() == ["007"]


def test_fold_models_are_averaged_by_id_and_out_of_fold_parts_that_overlap_are_an_error():
    first, second = views(["a", "b"], [[1, 0], [0, 1]]), views(["b", "a"], [[0.5, 0.5], [1, 0]])
    mean = mean_over_folds([first, second])
    assert mean.ids.tolist() == ["a", "b"] and mean.probs[:, 0].tolist() == [[1, 0], [0.25, 0.75]]
    with pytest.raises(UserError, match="1 of 2 ids have no prediction, first b"):
        mean_over_folds([first, views(["a", "c"], [[1, 0], [1, 0]])])
    joined = concatenate_folds([views(["a"], [[1, 0]]), views(["b"], [[0, 1]])])
    assert joined.at(np.array(["b"])).probs.tolist() == [[[0, 1]]]
    for part, message in (
        (views(["a"], [[0, 1]]), "1 repeated id, first a"),
        (views(["c"], [[0, 1]], ("flip_lr",)), "different views"),
    ):
        with pytest.raises(UserError, match=message):
            concatenate_folds([first, part])


def test_mapped_predictions_stay_in_their_file(tmp_path):
    probs = np.random.default_rng(0).dirichlet(np.ones(1000), (20, 3)).astype(np.float16)  # whose rows sum to 1 nearly
    saved = ViewPredictions(np.arange(20).astype(str), ("identity", "a", "b"), probs)
    saved.save(tmp_path / "oof.npz")
    mapped = ViewPredictions.load(tmp_path / "oof.npz", mapped=True)
    assert isinstance(mapped.probs, np.memmap) and not mapped.probs.flags.writeable
    mapped.release()  # read again when it is used
    rows = np.array([3, 1])
    assert np.array_equal(mapped.view("b", rows), probs[rows, 2].astype(np.float32))
    assert np.array_equal(mapped.view("b", slice(2, 5)), probs[2:5, 2].astype(np.float32))
    np.savez_compressed(tmp_path / "small.npz", ids=saved.ids, views=np.array(saved.views), probs=probs)
    with pytest.raises(UserError, match="probs is compressed and cannot be mapped"):
        ViewPredictions.load(tmp_path / "small.npz", mapped=True)
