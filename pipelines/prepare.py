"""Index every image, group duplicates, make the folds once, and write the images into one set of records per fold."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from competition.data import duplicates, folds, index, records
from competition.data.adapters import ADAPTERS
from competition.data.competition import Settings
from competition.manifest import atomic
from pipelines.stage import Job, main, progress_bar, start_tensorflow


def run(job: Job) -> None:
    """raw/ -> data/: competition.json, index.csv, support.csv, duplicates.csv, sample_submission.csv, records/"""
    raw = job.needs(job.path("raw.json"), "download")
    params, wanted = job.params, Settings(**asdict(job.params.competition), seed=job.params.prepare.seed)
    job.piece(
        "prepare",
        job.path("data", "manifest.json"),
        {"raw": raw.files, "prepare": params.prepare, "competition": wanted},
        lambda: prepare(job, wanted),
    )


def prepare(job: Job, wanted: Settings) -> tuple[Iterable[Path], Mapping[str, Any]]:
    start_tensorflow(job)
    adapter, raw, data, how = ADAPTERS[wanted.adapter], job.path("raw"), job.path("data"), job.params.prepare
    described = adapter.describe(raw, wanted)
    for note in described.notes:
        job.say(f"prepare: {note}")
    with progress_bar(None, "reading images") as bar:
        table, thumbs = index.build(adapter.rows(raw, wanted), len(described.classes), bar.update_to)
    same = duplicates.pairs(table, thumbs, bits=how.near_bits, pixels=how.near_pixels)
    table["group"] = duplicates.groups(same, len(table))
    named = same.assign(a=table["id"].to_numpy()[same["a"]], b=table["id"].to_numpy()[same["b"]])
    conflicts = duplicates.conflicts(table)
    table = duplicates.without_conflicts(table, how.label_conflicts)
    table, bad = index.without_bad_images(table, how.bad_images)
    table["fold"] = folds.assign(table, how.folds, how.seed)
    support = folds.support(table, len(described.classes))
    shutil.rmtree(data / "records", ignore_errors=True)
    with progress_bar(len(table), "writing records") as bar:
        names = records.write(
            adapter.rows(raw, wanted), table, str(data / "records"), shard_bytes=how.shard_megabytes * 1_000_000, progress=bar.update_to
        )
    tables = {"duplicates.csv": named, "conflicts.csv": conflicts, "unreadable.csv": bad[["id", "part", "shard", "problem"]]}
    for name, content in {**tables, "support.csv": support.reset_index()}.items():
        with atomic(data / name) as temporary:
            content.to_csv(temporary, index=False, lineterminator="\n")
    index.save(table, data / "index.csv")
    described.save(data / "competition.json")
    shutil.copyfile(adapter.sample(raw), data / "sample_submission.csv")
    counts = {part: int((table["part"] == part).sum()) for part in dict.fromkeys(table["part"])}
    job.say(f"prepare: {', '.join(f'{n:,} {part}' for part, n in counts.items())}, {len(described.classes)} classes")
    say_findings(job, named, conflicts, bad)
    error = folds.share_errors(support).max()
    job.say(f"prepare: {how.folds} folds, largest error of the class shares {error:.3f}; rows per class and fold in data/support.csv")
    if thin := folds.thin_classes(support):
        job.say(f"prepare: {len(thin)} classes are missing from some fold, e.g. {described.classes[thin[0]]}: their score is a guess")
    files = [data / name for name in (*tables, "support.csv", "index.csv", "competition.json", "sample_submission.csv")]
    result = {"rows": counts, "duplicate_pairs": len(named), "conflicts": len(conflicts), "unreadable": len(bad), "share_error": error}
    return [*files, *(data / "records" / name for name in names)], result


def say_findings(job: Job, pairs: Any, conflicts: Any, bad: Any) -> None:
    if len(pairs):
        job.say(f"prepare: {len(pairs):,} pairs of the same photo ({int(pairs['exact'].sum()):,} byte for byte) stay in one fold: data/duplicates.csv")
    if len(conflicts):
        job.say(f"prepare: {conflicts['group'].nunique():,} photos stand under two labels ({job.params.prepare.label_conflicts}): data/conflicts.csv")
    if lost := int((bad["part"] == "test").sum()):
        job.say(f"prepare: WARNING {lost:,} test images cannot be read and will get the mean prediction: data/unreadable.csv")
    if lost := int((bad["part"] != "test").sum()):
        job.say(f"prepare: {lost:,} labelled images cannot be read and were dropped: data/unreadable.csv")


if __name__ == "__main__":
    main(run)
