"""Multi-label and regression: metrics, standard errors, thresholds and the whole chain."""

import warnings

import numpy as np
import pytest
from builders import params
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from competition.config.errors import UserError
from competition.config.params import Honest
from competition.ensemble.bootstrap import Evaluation, score_with_error
from competition.ensemble.chain import Chain, apply_chain
from competition.ensemble.decision import fit_label_thresholds, label_sets
from competition.ensemble.honest import fit_and_score_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested import OofRows
from competition.ensemble.predictions import ViewPredictions, mean_over_folds
from competition.ensemble.settings import chain_settings
from competition.files.manifest import write_json

MACRO, SAMPLES, RMSE = METRICS["multilabel_macro_f1"], METRICS["samples_f1"], METRICS["rmse"]
HONEST = Honest(200, 0, 5)


@st.composite
def label_tables(draw_):
    """targets (N, C) bool and probs (N, C); some classes have no positive row, or no negative one, some rows no label."""
    c, n = draw_(st.integers(2, 7)), draw_(st.integers(10, 50))
    rng = np.random.default_rng(draw_(st.integers(0, 2**32 - 1)))
    targets, probs = rng.random((n, c)) < rng.random(c) / 2, rng.random((n, c))
    targets[:, 0] = draw_(st.booleans())  # a degenerate class
    targets[:2, 1] = True, False
    targets[2] = False
    return targets, np.round(probs, 1) if draw_(st.booleans()) else probs


def auc_of_defined_columns(y, p):
    columns = [c for c in range(y.shape[1]) if 0 < y[:, c].sum() < len(y)]
    return reference.roc_auc_score(y[:, columns], p[:, columns], average="macro")


REFERENCES = {
    "multilabel_macro_f1": lambda y, p: reference.f1_score(y, p >= 0.5, average="macro", zero_division=0),
    "samples_f1": lambda y, p: reference.f1_score(y, p >= 0.5, average="samples", zero_division=0),
    "mean_average_precision": lambda y, p: reference.average_precision_score(y, p, average="macro"),
    "multilabel_mean_column_auc": auc_of_defined_columns,
    "multilabel_log_loss": lambda y, p: (
        -np.mean([reference.log_loss(y[:, c], p[:, c], labels=[False, True]) for c in range(y.shape[1])])
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
@settings(max_examples=60, deadline=None)
@given(table=label_tables())
def test_every_multi_label_metric_equals_scikit_learn(name, table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of classes without positives
        expected = REFERENCES[name](*table)
    assert METRICS[name].evaluate(*table) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_errors_of_a_regression_equal_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    targets, values = rng.normal(50, 20, 30), rng.normal(50, 20, (30, 1))
    shown = {name: METRICS[name].display(METRICS[name].evaluate(targets, values)) for name in ("rmse", "mae")}
    assert shown["rmse"] == pytest.approx(reference.root_mean_squared_error(targets, values[:, 0]), abs=1e-12)
    assert shown["mae"] == pytest.approx(reference.mean_absolute_error(targets, values[:, 0]), abs=1e-12)


@pytest.mark.parametrize("name", [*REFERENCES, "rmse"])
def test_the_standard_error_is_the_spread_of_the_score_over_samples(name):
    """Scores of 300 fresh samples of 200 rows spread as much as the bootstrap of one of them says."""
    rng, metric = np.random.default_rng(1), METRICS[name]

    def sample():
        targets = rng.random((200, 4)) < 0.3
        probs = np.clip(rng.normal(0.3 + 0.4 * targets, 0.2), 0, 1)
        return (targets[:, 0] * 3.0 + rng.normal(0, 1, 200), probs[:, :1] * 3) if name == "rmse" else (targets, probs)

    spread = np.std([metric.evaluate(*sample()) for _ in range(300)])
    errors = [score_with_error(*sample(), Evaluation(metric, 4, 200, seed=0)).error for _ in range(5)]
    assert np.mean(errors) == pytest.approx(spread, rel=0.25)


def test_the_thresholds_of_macro_f1_are_the_best_ones_of_each_class():
    rng = np.random.default_rng(3)
    targets = rng.random((300, 3)) < [0.5, 0.2, 0.05]
    probs = np.clip(rng.normal(0.2 + 0.25 * targets, 0.12), 0, 1)
    thresholds = fit_label_thresholds(probs, targets, MACRO, passes=1, shrink_rows=0)
    for c in range(3):
        decided, truth = probs[:, c] >= np.unique(probs[:, c])[:, None], targets[:, c]
        best = (2 * (decided & truth).sum(1) / (decided.sum(1) + truth.sum())).max()
        assert reference.f1_score(targets[:, c], probs[:, c] >= thresholds[c]) == pytest.approx(best)
    shrunk = fit_label_thresholds(probs, targets, MACRO, passes=1, shrink_rows=1e9)
    assert np.ptp(shrunk) < 1e-3  # the common threshold


def test_thresholds_without_positives_and_rows_without_a_label():
    targets, probs = np.array([[1, 0], [0, 0], [1, 0]], bool), np.array([[0.4, 0.1], [0.2, 0.3], [0.5, 0.2]])
    thresholds = fit_label_thresholds(probs, targets, MACRO, 1, 0)
    assert 0.2 < thresholds[0] < 0.4 and 0.3 < thresholds[1] < 0.401  # the common threshold
    probs, thresholds = np.array([[0.1, 0.4], [0.9, 0.1]]), np.array([0.2, 0.6])
    assert label_sets(probs, thresholds, at_least_one=False).tolist() == [[False, False], [True, False]]
    assert label_sets(probs, thresholds, at_least_one=True).tolist() == [[True, False], [True, False]]


def members(targets, noise, views=("identity",), target="multi", seed=0):
    """name -> predictions that see the targets through their own noise, the same under every view but for more noise."""
    rng, ids = np.random.default_rng(seed), np.array([f"i{n:04}" for n in range(len(targets))])
    columns = targets[:, None] if targets.ndim == 1 else targets
    result = {}
    for name, scale in noise.items():
        seen = [columns + rng.normal(0, scale, columns.shape) for _ in views]
        probs = np.stack(seen, 1)
        probs = probs if target == "regression" else 1 / (1 + np.exp(-4 * (probs - 0.6)))
        result[name] = ViewPredictions(ids, tuple(views), probs.astype(np.float32), target)
    return result


@pytest.mark.parametrize("name", ["multilabel_macro_f1", "samples_f1", "mean_average_precision"])
def test_the_chain_of_a_multi_label_competition_is_fitted_scored_and_stored(name, tmp_path):
    rng = np.random.default_rng(5)
    targets, folds = rng.random((250, 4)) < [0.5, 0.3, 0.2, 0.1], np.arange(250) % 5
    oof = members(targets, {"good": 0.5, "poor": 1.0}, ("identity", "flip_lr"))
    result = fit_and_score_chain(
        OofRows(oof, targets, folds), chain_settings(params("blend.bags=2 blend.rounds=4"), name), HONEST
    )
    assert 0.5 < result.honest.value < 1 and result.honest.error > 0
    assert result.chain.blend.mixing == "log_odds"
    write_json(tmp_path / "chain.json", result.chain)
    probs, decided = apply_chain(Chain.load(tmp_path / "chain.json"), oof)
    assert probs.shape == decided.shape == targets.shape and decided.dtype == bool
    metric = METRICS[name]
    assert metric.evaluate(targets, metric.output_of(probs, decided)) == pytest.approx(result.chosen_on)


def test_the_chain_of_a_regression_averages_values():
    rng = np.random.default_rng(6)
    targets, folds = rng.normal(1000, 20, 200), np.arange(200) % 5
    oof = members(targets, {"a": 10.0, "b": 10.0}, ("identity", "flip_lr"), "regression")
    settings = chain_settings(params("blend.bags=2 blend.rounds=4"), "rmse")
    result = fit_and_score_chain(OofRows(oof, targets, folds), settings, HONEST)
    alone = RMSE.evaluate(targets, oof["a"].view("identity"))
    assert RMSE.display(result.honest.value) < 0.75 * RMSE.display(alone)  # half the variance or less
    assert result.honest.error > 0
    assert mean_over_folds([oof["a"], oof["a"]]).probs.dtype == np.float32  # 1000 ± 0.5 would be lost in float16


def test_predictions_of_the_wrong_kind_are_refused():
    labels = "1 row does not hold probabilities of independent labels .*, first a; apply a sigmoid"
    numbers = "1 row does not hold finite numbers, first a"
    for target, row, match in (("multi", [1.2, 0.0], labels), ("regression", [np.nan], numbers)):
        with pytest.raises(UserError, match=match):
            ViewPredictions(np.array(["a"]), ("identity",), np.array([[row]]), target)


@pytest.mark.parametrize("target", ["single", "multi", "regression"])
def test_the_kind_of_predictions_is_stored_with_them(tmp_path, target):
    probs = np.array([[[0.25, 0.75]]] if target == "single" else [[[0.5, 0.75]]])
    ViewPredictions(np.array(["a"]), ("identity",), probs, target).save(tmp_path / "p.npz")
    for mapped in (False, True):
        loaded = ViewPredictions.load(tmp_path / "p.npz", mapped)
        assert loaded.target == target and np.array_equal(loaded.at(np.array(["a"])).probs, probs)
