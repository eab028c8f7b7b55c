"""What does prior correction gain on photos of unequal classes? python -m benchmarks.unequal_classes work/photos [--splits 14]

Takes the stored features of the training rows of a prepared competition (`make train` with a member that has a `head:`).
Each split draws class sizes that differ (their logarithm has a standard deviation of 0.8), gives half of the rows to the blend
and keeps half as fresh rows. Logistic regression, extremely randomised trees and a small network of scikit-learn are
cross-fitted in three folds and blended by `stacking`.

For each list of decision rules: macro-F1 on the fresh rows over argmax, mean over the splits with its standard error.
"""

import argparse
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from competition.config.params_file import load_params
from competition.ensemble.chain import apply_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested_cross_fit import NestedCrossFit, OofRows
from competition.ensemble.settings import chain_settings
from competition.ensemble.stored_predictions import ViewPredictions
from competition.files.manifest import read_manifest
from competition.prepare import index

FOLDS, FEWEST = 3, 6
RULES = (("argmax",), ("argmax", "prior"), ("prior",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="work/<competition>")
    parser.add_argument("--splits", type=int, default=14)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the small network stops before it converges
    started, (features, labels) = time.process_time(), stored_features(options.work)
    outcomes = [one_split(features, labels, seed) for seed in range(options.splits)]
    for members in outcomes[0]:
        scores = np.array([outcome[members] for outcome in outcomes])
        gains = scores[:, 1:] - scores[:, :1]
        errors = gains.std(0, ddof=1) / len(gains) ** 0.5
        text = ", ".join(
            f"{rules} {gain:+.4f} +- {error:.4f}"
            for rules, gain, error in zip(RULES[1:], gains.mean(0), errors, strict=True)
        )
        print(f"{members}: argmax {scores[:, 0].mean():.4f}; gain of {text}")
    print(
        f"RESULT: {len(labels):,} rows, {options.splits} splits; {time.process_time() - started:.0f} s of processor time"
    )


def stored_features(work: Path) -> tuple[np.ndarray, np.ndarray]:
    """(N, F) float32 features of the training rows under the identity view, those of the smallest images, and (N,) labels."""
    table = index.load(work / "data" / "index.csv")
    labels = table.loc[table["part"] == "train", "label"].to_numpy()
    manifests = [
        (path, manifest) for path in work.glob("features/*/manifest.json") if (manifest := read_manifest(path))
    ]
    wanted = {"part": "train", "view": "identity"}
    fitting = [(one.depends["image_size"], path) for path, one in manifests if wanted.items() <= one.depends.items()]
    return np.load(min(fitting)[1].with_name("features.npy")).astype(np.float32), labels


def one_split(features: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, list[float]]:
    """Members -> macro-F1 on the fresh rows with each of RULES."""
    rng, counts = np.random.default_rng(seed), np.bincount(labels)
    share = np.exp(0.8 * rng.normal(size=len(counts)))
    sizes = np.minimum(counts, np.maximum(FEWEST, (counts * share / np.quantile(share, 0.8)).astype(int)))
    usable = np.flatnonzero(counts >= FEWEST)
    rows = np.concatenate([rng.permutation(np.flatnonzero(labels == c))[: sizes[c]] for c in usable])
    x, y = features[rows], np.unique(labels[rows], return_inverse=True)[1]
    chosen, fresh = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=seed)
    models = {
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300)),
        "trees": ExtraTreesClassifier(200, random_state=seed),
        "network": make_pipeline(StandardScaler(), MLPClassifier((64,), alpha=1.0, max_iter=40, random_state=seed)),
    }
    folds = np.zeros(len(chosen), int)
    oof = {name: np.zeros((len(chosen), len(usable)), np.float32) for name in models}
    test = {name: np.zeros((len(fresh), len(usable)), np.float32) for name in models}
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(chosen, y[chosen])
    for fold, (train, held_out) in enumerate(splits):
        folds[held_out] = fold
        for name, model in models.items():
            model.fit(x[chosen[train]], y[chosen[train]])
            oof[name][held_out] = model.predict_proba(x[chosen[held_out]])
            test[name] += model.predict_proba(x[fresh]) / FOLDS
    outcome = Outcome(oof, test, y[chosen], y[fresh], folds)
    groups = (*((name,) for name in models), tuple(models))
    return {" and ".join(members): [score_of(outcome, members, rules) for rules in RULES] for members in groups}


@dataclass(frozen=True)
class Outcome:
    """Probabilities (N, C) of each model on the rows of the blend and on the fresh rows, with their labels; folds of the former."""

    oof: dict[str, np.ndarray]
    fresh: dict[str, np.ndarray]
    labels: np.ndarray
    fresh_labels: np.ndarray
    folds: np.ndarray


def score_of(outcome: Outcome, members: tuple[str, ...], rules: tuple[str, ...]) -> float:
    """Macro-F1 on the fresh rows of the default blend of these members with these decision rules."""
    params = load_params(Path(__file__).resolve().parents[1] / "params.yaml")
    settings = chain_settings(params, METRICS["macro_f1"])
    settings = replace(settings, decision=replace(settings.decision, rules=rules))
    oof, fresh = (
        {
            name: ViewPredictions(ids_of(probs[name]), ("identity",), probs[name][:, None].astype(np.float16))
            for name in members
        }
        for probs in (outcome.oof, outcome.fresh)
    )
    rows, honest = OofRows(oof, outcome.labels, outcome.folds), replace(params.honest, resamples=200)
    decided = apply_chain(NestedCrossFit(rows, settings, honest).chain(), fresh)[1]
    return METRICS["macro_f1"].evaluate(outcome.fresh_labels, decided, oof[members[0]].probs.shape[2])


def ids_of(probs: np.ndarray) -> np.ndarray:
    return np.array([f"r{number:05}" for number in range(len(probs))])


if __name__ == "__main__":
    main()
