"""Two blends on the same rows: the paired honest difference with its interval, and which rows changed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from competition.data.prepared import load_prepared
from competition.ensemble.chain import Chain
from competition.ensemble.compare import compare, moved_by_seeds
from competition.ensemble.metrics import metric_named
from competition.ensemble.predictions import load_scores
from competition.errors import Refusal
from competition.gather import seed_spreads
from competition.manifest import atomic
from competition.report.words import gain, seeds_line
from pipelines.stage import Job, add_two, main, shown


def run(job: Job) -> None:
    """blends/<A>, blends/<B> -> compare.csv: id, label, before, after"""
    prepared, (a, b) = load_prepared(job.path("data")), (kept(job, job.options.a), kept(job, job.options.b))
    classes, metric = prepared.competition.classes, metric_named(prepared.competition.metric)
    ids_a, ids_b = (load_scores(folder / "honest_oof.npz")[0] for folder in (a, b))
    shared = np.intersect1d(ids_a, ids_b)
    labels = prepared.part("train").set_index("id")["label"].loc[shared].to_numpy()
    before, after = (said(folder, shared, metric.of_tally is not None) for folder in (a, b))
    honest = job.params.honest
    found = compare(shared, labels, before, after, metric, len(classes), honest.resamples, honest.seed)
    spreads, notes = seed_spreads(job.work, job.params, prepared, job.overrides)
    old, new = (Chain.load(folder / "chain.json").blend.weights for folder in (a, b))
    retrained = trained_apart(a, b)
    d = replace(found.difference, seeds=moved_by_seeds(old, new, spreads, retrained))
    job.say(f"compare: {b.name} over {a.name}, {metric.name} on {len(shared):,} out-of-fold rows, both cross-fitted")
    job.say(f"  {gain(d)}; without other seeds, 95 % interval: {d.low:+.4f} to {d.high:+.4f}")
    for line in (*seeds_line(spreads, sorted({*old, *new})), *(f"  {note}" for note in notes)):
        job.say(line)
    if retrained:
        job.say(f"  of other fold models in the two: {', '.join(retrained)}")
    truth = dict(zip(shared, labels))
    rows = [
        (name, classes[truth[name]], classes[x], classes[y], x == truth[name], y == truth[name])
        for name, x, y in found.changed
    ]
    table = pd.DataFrame(rows, columns=["id", "label", "before", "after", "was_right", "is_right"])
    with atomic(job.path("compare.csv")) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
    better, worse = (
        int((~table["was_right"] & table["is_right"]).sum()),
        int((table["was_right"] & ~table["is_right"]).sum()),
    )
    job.say(f"  {len(table):,} rows changed: {better} corrected, {worse} corrupted: {shown(job.path('compare.csv'))}")


def trained_apart(a: Path, b: Path) -> list[str]:
    """Members of both blends whose fold models are not the same in the two: their seeds do not cancel."""
    one, two = (json.loads((folder / "scores.json").read_text(encoding="utf-8")).get("models", {}) for folder in (a, b))
    return sorted(name for name in one.keys() & two.keys() if one[name] != two[name])


def kept(job: Job, name: str) -> Path:
    """The folder of the one blend whose submission begins with `name`."""
    folders = sorted(job.path("blends").glob("*")) if job.path("blends").is_dir() else []
    found = [folder for folder in folders if name and folder.name.startswith(Path(name).stem)]
    if len(found) != 1:
        known = ", ".join(folder.name for folder in folders) or "none"
        raise Refusal(
            f"{name!r} names {len(found)} blends where one was expected (make compare A=... B=...); there are {known}"
        )
    return found[0]


def said(folder: Path, ids: np.ndarray, as_labels: bool) -> np.ndarray:
    if as_labels:
        return (
            pd.read_csv(folder / "honest_oof.csv", dtype={"id": str}, keep_default_na=False)
            .set_index("id")["label"]
            .loc[ids]
            .to_numpy()
        )
    return load_scores(folder / "honest_oof.npz", ids)[1]


if __name__ == "__main__":
    main(run, add_two)
