from importlib.util import find_spec

import numpy as np
import pytest

from competition.prepare import label_issues


@pytest.mark.skipif(find_spec("cleanlab") is None, reason="cleanlab is not installed (goldfold[labels])")
def test_planted_wrong_labels_are_listed_with_the_least_probable_first():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 400)
    probs = 0.4 * rng.dirichlet(np.ones(4), 400)
    probs[np.arange(400), truth] += 0.6
    labels = truth.copy()
    wrong = rng.choice(400, 20, replace=False)
    labels[wrong] = (truth[wrong] + 1) % 4
    issues = label_issues.find_label_issues(np.array([f"i{n}" for n in range(400)]), labels, probs)
    assert set(issues["id"]) <= {f"i{n}" for n in wrong}
    assert len(issues) >= 10
    assert issues["label_probability"].is_monotonic_increasing
    assert all(issues["suggested"] == [truth[int(image_id[1:])] for image_id in issues["id"]])
