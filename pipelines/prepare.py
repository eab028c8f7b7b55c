"""Index every image, group duplicates, make the folds once, and write the images into one set of records per fold."""

import argparse
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from competition.data import duplicates, folds, index, leaks, records
from competition.data.adapters import ADAPTERS
from competition.data.adapters.folder import external_rows
from competition.data.competition import Competition, Row, Settings
from competition.ensemble.rare_classes import small_class_warning
from competition.errors import Refusal, first
from competition.manifest import atomic, sha256
from pipelines.backend import start_tensorflow
from pipelines.progress import progress_bar
from pipelines.stage import Job, main, shown


def run(job: Job) -> None:
    """raw/ -> data/: competition.json, index.csv, support.csv, duplicates.csv, sample_submission.csv, records/"""
    raw = job.needs(job.path("raw.json"), "download")
    params, wanted = job.params, Settings(**asdict(job.params.competition), seed=job.params.prepare.seed)
    job.piece(
        "prepare",
        job.path("data", "manifest.json"),
        {"raw": raw.files, "prepare": params.prepare, "competition": wanted, **same_as(job)},
        lambda: prepare(job, wanted),
    )


def same_as(job: Job) -> dict[str, str]:
    return {"like": sha256(Path(job.options.like))} if job.options.like else {}


def prepare(job: Job, wanted: Settings) -> tuple[Iterable[Path], Mapping[str, Any]]:
    start_tensorflow(job)
    data, how = job.path("data"), job.params.prepare
    described = ADAPTERS[wanted.adapter].describe(job.path("raw"), wanted)
    for note in described.notes:
        job.say(f"prepare: {note}")
    table, tables = indexed(job, wanted, described)
    support = folds.support(table, len(described.classes))
    tables["support.csv"] = support.reset_index()
    for name, content in tables.items():
        with atomic(data / name) as temporary:
            content.to_csv(temporary, index=False, lineterminator="\n")
    index.save(table, data / "index.csv")
    described.save(data / "competition.json")
    shutil.copyfile(ADAPTERS[wanted.adapter].sample(job.path("raw")), data / "sample_submission.csv")
    shutil.rmtree(data / "records", ignore_errors=True)
    with progress_bar(len(table), "writing records") as bar:
        rows, size = all_rows(job, wanted, described), how.shard_megabytes * 1_000_000
        names = records.write(rows, table, str(data / "records"), shard_bytes=size, progress=bar.update_to)
    say_shape(job, table, support, described)
    files = [data / name for name in (*tables, "index.csv", "competition.json", "sample_submission.csv")]
    counts = {part: int(count) for part, count in table["part"].value_counts(sort=False).items()}
    result = {
        "rows": counts,
        "found": {name: len(content) for name, content in tables.items()},
        "share_error": folds.share_errors(support).max(),
    }
    return [*files, *(data / "records" / name for name in names)], result


def all_rows(job: Job, wanted: Settings, described: Competition) -> Iterator[Row]:
    """The competition's rows, then those of the external folders."""
    yield from ADAPTERS[wanted.adapter].rows(job.path("raw"), wanted)
    for name, folder in job.params.prepare.external.items():
        rows, _ = external_rows(external_folder(name, folder), described)
        yield from (replace(row, id=f"external/{name}/{row.shard}") for row in rows)


def external_folder(name: str, folder: str) -> Path:
    if not Path(folder).is_dir():
        raise Refusal(f"prepare.external.{name}: {folder} is no folder; expected one folder per class in it")
    return Path(folder)


def indexed(job: Job, wanted: Settings, described: Competition) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """(index with groups and folds, tables of what was found on the way)."""
    how = job.params.prepare
    for name, folder in how.external.items():
        _, left_out = external_rows(external_folder(name, folder), described)
        if left_out:
            job.say(
                f"prepare: external {name}: {len(left_out)} folders are no class and are left out: {first(left_out)}"
            )
    with progress_bar(None, "reading images") as bar:
        table, thumbs = index.build(all_rows(job, wanted, described), len(described.classes), bar.update_to)
    if job.options.like:
        job.say(f"prepare: groups and folds as in {shown(Path(job.options.like))}")
        return index.like(table, Path(job.options.like)), {}
    same = duplicates.pairs(table, thumbs, bits=how.near_bits, pixels=how.near_pixels)
    table["group"] = duplicates.groups(same, len(table))
    ids = table["id"].to_numpy()
    found = {
        "duplicates.csv": same.assign(a=ids[same["a"]], b=ids[same["b"]]),
        "conflicts.csv": duplicates.conflicts(table),
        "leaks.csv": leaks.find(table),
    }
    inflation = leaks.inflation(table, found["leaks.csv"], len(described.classes))
    table, found["external_removed.csv"] = leaks.without_leaking_external(table)
    table = duplicates.without_conflicts(table, how.label_conflicts)
    table, bad = index.without_bad_images(table, how.bad_images)
    found["unreadable.csv"] = bad[["id", "part", "shard", "problem"]]
    table["fold"] = folds.assign(table, how.folds, how.seed)
    say_findings(job, found, inflation)
    return table, found


def say_shape(job: Job, table: pd.DataFrame, support: pd.DataFrame, described: Competition) -> None:
    counts = ", ".join(f"{count:,} {part}" for part, count in table["part"].value_counts(sort=False).items())
    job.say(f"prepare: {counts}, {len(described.classes)} classes; metric {described.metric}")
    error = folds.share_errors(support).max()
    job.say(
        f"prepare: {support.shape[1]} folds, largest error of the class shares {error:.3f}; rows per class and fold: data/support.csv"
    )
    if thin := folds.thin_classes(support):
        job.say(
            f"prepare: {len(thin)} classes are missing from some fold, e.g. {described.classes[thin[0]]}: their score is a guess"
        )
    for warning in small_class_warning(table.loc[table["fold"] >= 0, "label"].to_numpy(), len(described.classes)):
        job.say(f"prepare: {warning}")


def say_findings(job: Job, found: Mapping[str, pd.DataFrame], inflation: leaks.Inflation) -> None:
    pairs, conflicts, bad = found["duplicates.csv"], found["conflicts.csv"], found["unreadable.csv"]
    if len(pairs):
        exact = int(pairs["exact"].sum())
        job.say(
            f"prepare: {len(pairs):,} pairs of the same photo ({exact:,} byte for byte); none crosses a fold: data/duplicates.csv"
        )
    if len(conflicts):
        policy = job.params.prepare.label_conflicts
        job.say(
            f"prepare: {conflicts['group'].nunique():,} photos stand under two labels (label_conflicts: {policy}): data/conflicts.csv"
        )
    if inflation.touched:
        job.say(
            f"prepare: LEAK {inflation.touched:,} of {inflation.rows:,} test images are also labelled images: worth at most "
            f"{inflation.accuracy:.4f} of accuracy and {inflation.macro_recall:.4f} of macro recall: data/leaks.csv"
        )
    if removed := len(found["external_removed.csv"]):
        job.say(
            f"prepare: {removed:,} external images are photos of the competition and were removed: data/external_removed.csv"
        )
    test = bad["part"] == "test"
    if test.any():
        job.say(
            f"prepare: WARNING {int(test.sum()):,} test images cannot be read and will get the mean prediction: data/unreadable.csv"
        )
    if (~test).any():
        job.say(f"prepare: {int((~test).sum()):,} labelled images cannot be read and were dropped: data/unreadable.csv")


def add_like(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--like", default="", help="an index whose groups and folds are taken over")


if __name__ == "__main__":
    main(run, add_like)
