"""Held-out scores of stored fold models, under the metric of the parameters."""

from competition.ensemble.metrics import metric_named
from competition.ensemble.predictions import ViewPredictions
from competition.ensemble.trivial import trivial_output
from competition.files.manifest import read_manifest
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import fold_model_path
from competition.workspace.runs import Run


def trivial_score(prepared: Prepared, fold: int) -> tuple[str, float]:
    """What the trivial baseline answers, and its score on the held-out rows of a fold, in the metric's usual sign."""
    metric, train = metric_named(prepared.competition.metric), prepared.part("train")
    labels = prepared.targets(train["label"].to_numpy()[train["fold"].to_numpy() == fold])
    classes = len(prepared.competition.classes)
    answer, output = trivial_output(labels, metric, classes, seed=fold)
    return answer, metric.display(metric.evaluate(labels, output, classes))


def held_out_score(prepared: Prepared, run: Run, fold: int) -> float:
    """Score of a fold model on its held-out rows, identity view; NaN if it cannot be computed.

    The manifest has the score under the metric of its training; for another metric it is computed from oof.npz.
    """
    path, metric = fold_model_path(run, fold), metric_named(prepared.competition.metric)
    manifest = read_manifest(path)
    if manifest is None:
        return float("nan")
    if manifest.result.get("metric", metric.name) == metric.name:
        return float(manifest.result["held_out"])
    train = prepared.part("train").set_index("id")["label"]
    oof = path.with_name("oof.npz")
    if not oof.is_file():
        return float("nan")
    predictions = ViewPredictions.load(oof)
    if not set(predictions.ids.tolist()) <= set(train.index):
        return float("nan")
    labels, probs = prepared.targets(train.loc[predictions.ids].to_numpy()), predictions.view("identity")
    return metric.display(metric.evaluate(labels, probs))
