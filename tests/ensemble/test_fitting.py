from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from competition.ensemble.fitting import Fitter
from competition.ensemble.shortlist import shortlist

from competition.ensemble.blend import BLENDS
from competition.ensemble.chain import chain_labels
from competition.ensemble.decision import fit_decision, fit_prior
from competition.ensemble.metrics import METRICS
from competition.ensemble.predictions import ViewPredictions

from .simulated import BLEND, DECISION, SETTINGS, as_members, draw

NAMES = [
    (calibration, method, rule)
    for calibration in ("none", "temperature")
    for method in ("equal", "best", "greedy", "bagged")
    for rule in ("argmax", "prior")
]


@pytest.mark.parametrize("mixing", ["mean", "geometric"])
@pytest.mark.parametrize("metric", ["macro_f1", "accuracy", "quadratic_kappa"])
def test_shortlists_give_the_chains_and_the_labels_that_all_probabilities_give(mixing, metric):
    labels, probs = draw([1.0, 1.5, 2.5, 2.5], rows=600, classes=12, seed=3, signal=2.5)
    probs[2] = probs[2] ** 4 / (probs[2] ** 4).sum(1, keepdims=True)  # an overconfident member
    settings = replace(SETTINGS, metric=metric, blend=replace(BLEND, mixing=mixing))
    blocks = np.arange(600) % 4
    fitter = Fitter(as_members(probs), labels, blocks, settings)
    full_fitter = Fitter(as_members(probs), labels, blocks, settings)
    full_fitter.uses_shortlist = lambda name: False  # type: ignore[method-assign]
    for excluded_blocks in (frozenset(), frozenset({1}), frozenset({0, 3})):
        shortlist_fits, full_fits = fitter.fit(excluded_blocks, NAMES), full_fitter.fit(excluded_blocks, NAMES)
        assert fitter.uses_shortlist(NAMES[0]) and shortlist_fits.keys() == full_fits.keys()
        for name, candidate in shortlist_fits.items():
            assert candidate.chain.digest() == full_fits[name].chain.digest(), name
            held_out = np.flatnonzero(np.isin(blocks, sorted(excluded_blocks)))
            output = chain_labels(candidate.chain, fitter.members, held_out) if len(held_out) else held_out
            assert np.array_equal(candidate.decided, output), name


def test_a_class_is_left_out_only_if_no_weights_and_no_prior_can_make_it_win():
    rng = np.random.default_rng(0)
    labels, probs = draw([1.0, 2.0, 3.0], rows=300, classes=8, signal=1.5)
    bias = rng.uniform(0, 0.7, 8)  # added to the logarithm of a class by a decision rule
    factors = np.exp(np.maximum(0, bias - bias[:, None])).astype(np.float32)
    short = shortlist(lambda part: probs[:, part], [slice(0, 100), slice(100, 300)], labels, "mean", factors)
    assert len(short.listed) < 0.8 * probs[0].size
    for weights in rng.dirichlet(np.full(3, 0.3), 50).astype(np.float32):
        scores = np.log((weights[:, None, None] * probs).sum(0)) + bias
        listed = np.log((weights[:, None] * short.values).sum(0)) + bias[short.listed]
        assert np.array_equal(short.winners(listed), scores.argmax(1))


def test_the_prior_rule_from_a_shortlist_is_that_of_all_probabilities():
    for seed in range(5):
        labels, (probs,) = draw([2.0], rows=500, classes=6, seed=seed, signal=1.0)
        member_probs, all_listed = probs[None], np.full((6, 6), 1e9)
        full_shortlist = shortlist(partial(np.take, member_probs, axis=1), [np.arange(500)], labels, "mean", all_listed)
        listed = np.log(np.maximum(full_shortlist.values[0], 1e-7))
        metric = METRICS["macro_f1"]
        assert fit_prior(full_shortlist, listed, metric) == fit_decision("prior", probs, labels, metric, DECISION)


def test_policies_and_temperatures_are_the_same_in_all_candidates_of_a_fit():
    labels, probs = draw([1.5, 1.5, 1.0], rows=400)
    ids = np.arange(400).astype(str)
    views = {"m": ViewPredictions(ids, ("identity", "flip_lr", "rot180"), np.stack(list(probs), 1).astype(np.float16))}
    fits = Fitter(views, labels, np.arange(400) % 3, SETTINGS).fit(frozenset({1}), NAMES)
    assert len({str(fit.chain.policies) for fit in fits.values()}) == 1
    temperatures = {name[0]: fit.chain.temperatures["m"] for name, fit in fits.items()}
    assert temperatures["none"] == 1.0 != temperatures["temperature"]


def test_a_sample_of_the_rows_for_temperatures_does_not_depend_on_labels(monkeypatch):
    monkeypatch.setattr("competition.ensemble.outputs.SAMPLE", 150)
    labels, probs = draw([1.0, 1.5], rows=400)
    blocks = np.arange(400) % 4
    changed_labels = np.where(blocks == 2, (labels + 1) % 5, labels)
    fits, fits_with_changed_labels = (
        Fitter(as_members(probs), truth, blocks, SETTINGS).fit(frozenset({2}), NAMES)
        for truth in (labels, changed_labels)
    )
    assert all(fits[name].chain == fits_with_changed_labels[name].chain for name in NAMES)


@pytest.mark.parametrize("method", sorted(BLENDS))
def test_the_fit_of_every_method_does_not_depend_on_the_size_of_the_chunks(method, monkeypatch):
    labels, probs = draw([1.0, 1.5], rows=200)
    names = [("temperature", method, "argmax")]
    fits = []
    for entries in (2_000_000, 200):
        monkeypatch.setattr("competition.ensemble.outputs.CHUNK_ENTRIES", entries)
        fitter = Fitter(as_members(probs), labels, np.arange(200) % 2, SETTINGS)
        fits.append(fitter.fit(frozenset({1}), names)[names[0]])
    assert fits[0].chain.digest() == fits[1].chain.digest()
    assert np.array_equal(fits[0].decided, fits[1].decided) and len(fits[0].decided) == 100
