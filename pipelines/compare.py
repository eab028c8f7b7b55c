"""Two blends on the same rows: the paired honest difference with its interval, and which rows changed."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd

from competition.artifacts.ensemble_inputs import seed_spreads
from competition.artifacts.manifest import atomic_write
from competition.config.errors import UserError
from competition.data.prepared import load_prepared
from competition.ensemble.chain import Chain
from competition.ensemble.compare import compare, seed_noise_of_difference
from competition.ensemble.metrics import metric_named
from competition.report.stored_blends import has_outputs, shared_rows, stored_output
from competition.report.terminal import gain, seeds_line
from pipelines.cli import main
from pipelines.runner import Job, display_path


def run(job: Job) -> None:
    """blends/<A>, blends/<B> -> compare.csv: id, label, before, after"""
    job.require(job.path("data", "manifest.json"), "download")
    prepared, (a, b) = load_prepared(job.path("data")), two_blends(job)
    classes, metric = prepared.competition.classes, metric_named(prepared.competition.metric)
    rows = shared_rows([a, b], prepared)
    before, after = (stored_output(folder, rows.ids, metric, len(classes)) for folder in (a, b))
    honest = job.params.honest
    comparison = compare(rows.ids, rows.labels, before, after, metric, len(classes), honest.resamples, honest.seed)
    spreads, notes = seed_spreads(job.work, job.params, prepared, job.overrides)
    old, new = (Chain.load(folder / "chain.json").blend.weights for folder in (a, b))
    retrained = trained_apart(a, b)
    d = replace(comparison.difference, seeds=seed_noise_of_difference(old, new, spreads, retrained))
    job.echo(f"compare: {b.name} over {a.name}, {metric.name} on {len(rows.ids):,} out-of-fold rows, both cross-fitted")
    job.echo(f"  {gain(d)}; without other seeds, 95 % interval: {d.low:+.4f} to {d.high:+.4f}")
    for line in (*seeds_line(spreads, sorted({*old, *new})), *(f"  {note}" for note in (*rows.notes(), *notes))):
        job.echo(line)
    if retrained:
        job.echo(f"  of other fold models in the two: {', '.join(retrained)}")
    truth = dict(zip(rows.ids, rows.labels))
    lines = [
        (name, classes[truth[name]], classes[x], classes[y], x == truth[name], y == truth[name])
        for name, x, y in comparison.changed
    ]
    table = pd.DataFrame(lines, columns=["id", "label", "before", "after", "was_right", "is_right"])
    with atomic_write(job.path("compare.csv")) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
    better, worse = (
        int((~table["was_right"] & table["is_right"]).sum()),
        int((table["was_right"] & ~table["is_right"]).sum()),
    )
    job.echo(
        f"  {len(table):,} rows changed: {better} corrected, {worse} corrupted: {display_path(job.path('compare.csv'))}"
    )


def trained_apart(a: Path, b: Path) -> list[str]:
    """Members of both blends whose fold models are not the same in the two: their seeds do not cancel."""
    one, two = (json.loads((folder / "scores.json").read_text(encoding="utf-8")).get("models", {}) for folder in (a, b))
    return sorted(name for name in one.keys() & two.keys() if one[name] != two[name])


def two_blends(job: Job) -> tuple[Path, Path]:
    """The folders of A and B, each named by the first digits of its submission."""
    folders = sorted(job.path("blends").glob("*")) if job.path("blends").is_dir() else []
    folders = [folder for folder in folders if has_outputs(folder)]
    known = ", ".join(folder.name for folder in folders) or "none; every `make predict` keeps one"
    missing = [f"{letter.upper()}=" for letter in ("a", "b") if not getattr(job.options, letter)]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} not given; make compare A=... B=... takes the first digits of two blends; "
            f"there are {known}"
        )
    pair = []
    for letter in ("a", "b"):
        name = getattr(job.options, letter)
        matches = [folder for folder in folders if folder.name.startswith(Path(name).stem)]
        if len(matches) != 1:
            raise UserError(
                f"{letter.upper()}={name} names {len(matches)} blends where one was expected; there are {known}"
            )
        pair.append(matches[0])
    return pair[0], pair[1]


if __name__ == "__main__":
    main("compare")
