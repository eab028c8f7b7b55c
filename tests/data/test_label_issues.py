import sys
from importlib.util import find_spec

import numpy as np
import pytest

from competition.config.errors import UserError
from competition.data import label_issues

with_cleanlab = pytest.mark.skipif(find_spec("cleanlab") is None, reason="cleanlab is not here (goldfold[labels])")


@with_cleanlab
def test_planted_wrong_labels_are_listed_the_worst_first():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 400)
    probs = 0.4 * rng.dirichlet(np.ones(4), 400)
    probs[np.arange(400), truth] += 0.6
    labels = truth.copy()
    wrong = rng.choice(400, 20, replace=False)
    labels[wrong] = (truth[wrong] + 1) % 4
    found = label_issues.find_label_issues(np.array([f"i{n}" for n in range(400)]), labels, probs)
    assert set(found["id"]) <= {f"i{n}" for n in wrong}
    assert len(found) >= 10
    assert found["label_probability"].is_monotonic_increasing
    assert all(found["suggested"] == [truth[int(one[1:])] for one in found["id"]])


@with_cleanlab
def test_float16_probabilities_and_a_class_without_rows_are_fine():
    probs = np.tile(np.array([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05]], np.float16), (10, 1))
    found = label_issues.find_label_issues(np.arange(20).astype(str), np.tile([0, 1], 10), probs)
    assert list(found) == ["id", "label", "suggested", "label_probability", "suggested_probability"]
    assert len(found) == 0


@with_cleanlab
def test_lengths_that_do_not_match_are_refused():
    with pytest.raises(UserError, match="2 ids, 3 labels"):
        label_issues.find_label_issues(np.array(["a", "b"]), np.zeros(3, int), np.ones((3, 2)) / 2)


def test_without_cleanlab_the_way_to_get_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    with pytest.raises(UserError, match=r"pip install 'goldfold\[labels\]'"):
        label_issues.find_label_issues(np.array(["a"]), np.zeros(1, int), np.ones((1, 2)) / 2)
