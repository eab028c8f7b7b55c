import numpy as np
import pytest

from competition.config.errors import UserError
from competition.ensemble.mixing import mean_over_folds
from competition.ensemble.stored_predictions import STORED_AS, ViewPredictions, concatenate_folds, in_order_of

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
    good = PROBS[0][: len(bad)]
    with pytest.raises(UserError, match=r"1 row without (probabilities|finite numbers).*, first a: "):
        ViewPredictions(IDS, ("identity", "flip_lr"), np.array([[good, good], [good, bad], [good, good]]), target)


@pytest.mark.parametrize("target", ["single", "multi", "regression"])
def test_saved_predictions_are_loaded_unchanged_and_files_are_reproducible(tmp_path, target):
    probs = np.stack([PROBS, PROBS[:, ::-1] if target == "single" else PROBS / 3], 1).astype(STORED_AS[target])
    both = ViewPredictions(IDS, ("identity", "flip_lr"), probs, target)
    for name in ("v.npz", "w.npz"):
        both.save(tmp_path / name)
    assert (tmp_path / "v.npz").read_bytes() == (tmp_path / "w.npz").read_bytes()
    for mapped in (False, True):
        back = ViewPredictions.load(tmp_path / "v.npz", mapped)
        assert (back.views, back.target, back.probs.dtype) == (both.views, target, STORED_AS[target])
        assert np.array_equal(back.probs, probs) and back.at(IDS[::-1]).target == target
    np.savez(tmp_path / "nan.npz", ids=IDS, views=np.array(["identity"]), probs=PROBS[:, None] / [1, np.nan])
    with pytest.raises(UserError, match=r"nan.npz: 3 rows without probabilities .*, first b"):
        ViewPredictions.load(tmp_path / "nan.npz")
    (tmp_path / "v.npz").write_bytes((tmp_path / "v.npz").read_bytes()[:100])
    for name, problem in (("v.npz", "is not a readable"), ("gone.npz", "does not exist")):
        with pytest.raises(UserError, match=rf"{name} {problem}"):
            ViewPredictions.load(tmp_path / name)


def test_fold_models_are_averaged_by_id_and_out_of_fold_parts_that_overlap_are_an_error():
    first, second = views(["a", "b"], [[1, 0], [0, 1]]), views(["b", "a"], [[0.5, 0.5], [1, 0]])
    mean = mean_over_folds([first, second])
    assert mean.ids.tolist() == ["a", "b"] and mean.probs[:, 0].tolist() == [[1, 0], [0.25, 0.75]]
    with pytest.raises(UserError, match="1 of 2 ids have no prediction, first b"):
        mean_over_folds([first, views(["a", "c"], [[1, 0], [1, 0]])])
    joined = concatenate_folds([views(["a"], [[1, 0]]), views(["b"], [[0, 1]])])
    assert joined.at(np.array(["b"])).probs.tolist() == [[[0, 1]]]
    with pytest.raises(UserError, match="1 repeated id, first a"):
        concatenate_folds([first, views(["a"], [[0, 1]])])


@pytest.mark.parametrize("is_large", [False, True])
def test_rows_of_fold_models_are_put_in_order_and_large_ones_in_a_hidden_file(is_large, tmp_path, monkeypatch) -> None:
    if is_large:
        monkeypatch.setattr("competition.ensemble.stored_predictions.MAPPED_BYTES", 1)
    parts = [views(["d", "a"], [[0.9, 0.1], [0.6, 0.4]]), views(["c"], [[0.2, 0.8]])]
    ordered = in_order_of(np.array(["a", "c", "d"]), parts, tmp_path)
    assert ordered.ids.tolist() == ["a", "c", "d"]
    assert np.array_equal(ordered.probs[:, 0, 0], np.array([0.6, 0.2, 0.9], ordered.probs.dtype))
    assert isinstance(ordered.probs, np.memmap) == is_large and not any(tmp_path.iterdir())
    ordered.release()
    assert ordered.probs[1, 0, 1] == np.asarray(0.8, ordered.probs.dtype)
    with pytest.raises(UserError, match="1 of 2 ids have no prediction, first b"):
        in_order_of(np.array(["a", "b"]), parts, tmp_path)
    with pytest.raises(UserError, match="1 repeated id, first d"):
        in_order_of(np.array(["a"]), [parts[0], views(["d"], [[0, 1]])], tmp_path)


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
