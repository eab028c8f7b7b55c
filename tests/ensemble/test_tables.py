from dataclasses import replace

import numpy as np

from competition.config.params import Honest
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested import OofRows
from competition.ensemble.predictions import ViewPredictions
from competition.ensemble.tables import blend_table, policy_table

from .simulated import BLEND, DECISION, SETTINGS, as_members, cross_fit, draw

HONEST = Honest(resamples=200, seed=0, blocks=10)
F1 = METRICS["macro_f1"]


def test_the_table_of_blends_has_every_member_and_method_scored_on_unseen_rows():
    labels, probs = draw([1.0, 1.5, 2.5], rows=300)
    views, folds = as_members(probs), np.arange(300) % 5
    rows = blend_table(OofRows(views, labels, folds), SETTINGS, HONEST)
    assert [r.name for r in rows] == ["m0", "m1", "m2", "equal", "best", "bagged", "greedy", "stacking"]
    alone, equal, best, greedy = (next(r for r in rows if r.name == n) for n in ("m0", "equal", "best", "greedy"))
    fixed = replace(SETTINGS, blend=replace(BLEND, methods=("greedy",)), decision=replace(DECISION, rules=("argmax",)))
    assert greedy.honest.value == F1.evaluate(
        labels, cross_fit(OofRows(views, labels, folds), fixed, HONEST).decided, 5
    )
    assert greedy.chosen_on >= greedy.honest.value
    assert alone.chosen_on == alone.honest.value == F1.evaluate(labels, views["m0"].view("identity"))  # nothing chosen
    assert equal.over.keys() == {"best"} and greedy.over.keys() == {"equal", "best"}
    assert np.isclose(greedy.over["equal"].value, greedy.honest.value - equal.honest.value)
    assert best.honest.value <= max(r.honest.value for r in rows[:3])


def test_the_table_of_views_counts_corrected_and_corrupted_rows():
    labels, probs = draw([1.5, 1.5, 8.0], rows=400)
    ids = np.array([f"i{n}" for n in range(400)])
    table = np.stack(list(probs), 1).astype(np.float16)
    views = {"m0": ViewPredictions(ids, ("identity", "flip_lr", "broken"), table)}
    off, fixed, searched = policy_table(OofRows(views, labels, np.arange(400) % 5), SETTINGS, HONEST)
    assert (off.name, fixed.name, searched.name) == ("identity", "mean", "greedy")
    assert off.over == {} and off.honest.value == F1.evaluate(labels, views["m0"].view("identity"))
    gain = searched.over["identity"]
    assert searched.honest.value > max(off.honest.value, fixed.honest.value)
    assert gain.corrected > gain.corrupted > 0
