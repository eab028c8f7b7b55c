"""Index every image, group duplicates and series, make the folds once, and write one set of records per fold."""

import shutil
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from competition.artifacts.manifest import atomic_write, sha256, write_json
from competition.config.errors import UserError, first
from competition.data import caveats, duplicates, embedding, folds, images, index, leaks, records, series, shift
from competition.data.adapters import ADAPTERS
from competition.data.adapters.folder import external_rows
from competition.data.competition import Competition, Row, Settings
from competition.ensemble.rare_classes import small_class_warning
from competition.report.caveats import series_line, shift_line
from competition.report.sheets import TILE, contact_sheet
from pipelines.backend import start_tensorflow
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path


def run(job: Job) -> None:
    """raw/ -> data/: competition.json, index.csv, duplicates.csv, series.csv, shift.json, sample_submission.csv, records/"""
    raw, how = job.require(job.path("raw.json"), "download"), job.params.prepare
    if (how.group_by == "column") != bool(how.group_column):
        raise UserError(
            f"prepare.group_by is {how.group_by} and prepare.group_column is {how.group_column!r}: "
            "set both (group_by=column and the name of a column) or neither"
        )
    params = job.params
    wanted = Settings(**asdict(params.competition), seed=how.seed, group_column=how.group_column)
    job.cached(
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
        job.echo(f"prepare: {note}")
    table, tables, looks = indexed(job, wanted, described)
    compared, tables["shift.csv"] = compare_parts(table, tables["series.csv"], looks)
    support = folds.support(table, len(described.classes))
    tables["support.csv"] = support.reset_index()
    for name, content in tables.items():
        with atomic_write(data / name) as temporary:
            content.to_csv(temporary, index=False, lineterminator="\n")
    write_json(data / "shift.json", caveats.facts_of(compared))
    index.save(table, data / "index.csv")
    described.save(data / "competition.json")
    shutil.copyfile(ADAPTERS[wanted.adapter].sample(job.path("raw")), data / "sample_submission.csv")
    shutil.rmtree(data / "records", ignore_errors=True)
    sheets = {"series.png": caveats.series_tiles(tables["series.csv"], table)}
    if compared and compared.differs:
        sheets["shift.png"] = caveats.shift_tiles(tables["shift.csv"])
    seen: dict[str, bytes] = {}
    with progress_bar(len(table), "writing records") as bar:
        wanted_ids = {name for tiles in sheets.values() for name in tiles}
        rows, size = kept(all_rows(job, wanted, described), wanted_ids, seen), how.shard_megabytes * 1_000_000
        names = records.write(rows, table, str(data / "records"), shard_bytes=size, progress=bar.update_to)
    drawn = draw_sheets(data, sheets, seen, how.fit)
    say_shape(job, table, support, described)
    for line in (*series_line(table, tables["series.csv"], how.group_by), *shift_line(compared)):
        job.echo(f"prepare: {line}")
    more = ("shift.json", "index.csv", "competition.json", "sample_submission.csv", *drawn)
    files = [data / name for name in (*tables, *more)]
    counts = {part: int(count) for part, count in table["part"].value_counts(sort=False).items()}
    result = {
        "rows": counts,
        "found": {name: len(content) for name, content in tables.items()},
        "share_error": folds.share_errors(support).max(),
    }
    return [*files, *(data / "records" / name for name in names)], result


def kept(rows: Iterable[Row], ids: Container[str], seen: dict[str, bytes]) -> Iterator[Row]:
    """The same rows; the images of these ids are put into `seen` as they pass."""
    for row in rows:
        if row.id in ids:
            seen[row.id] = row.data
        yield row


def draw_sheets(
    data: Path, sheets: Mapping[str, Mapping[str, str]], seen: Mapping[str, bytes], fit: images.Fit
) -> list[str]:
    """Draw each contact sheet that has tiles, take away those of before; returns the names of the files."""
    for name in ("series.png", "shift.png"):
        (data / name).unlink(missing_ok=True)
    for name, tiles in sheets.items():
        if tiles:
            contact_sheet([images.decode(seen[one], TILE, fit) for one in tiles], list(tiles.values()), data / name)
    return [name for name, tiles in sheets.items() if tiles]


def compare_parts(
    table: pd.DataFrame, members: pd.DataFrame, looks: pd.DataFrame
) -> tuple[shift.Shift | None, pd.DataFrame]:
    """Training rows against test rows; duplicates and series stay on one side of the comparison."""
    together = folds.kept_together(table, dict(zip(members["id"], members["series"])))
    return shift.compare(table, rows_of(looks, table), together)


def rows_of(looks: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """(N, F) float32: the descriptor of every row of the table."""
    return looks.loc[table["id"]].to_numpy()


def all_rows(job: Job, wanted: Settings, described: Competition) -> Iterator[Row]:
    """The competition's rows, then those of the external folders."""
    yield from ADAPTERS[wanted.adapter].rows(job.path("raw"), wanted)
    for name, folder in job.params.prepare.external.items():
        rows, _ = external_rows(external_folder(name, folder), described)
        yield from (replace(row, id=f"external/{name}/{row.shard}") for row in rows)


def external_folder(name: str, folder: str) -> Path:
    if not Path(folder).is_dir():
        raise UserError(f"prepare.external.{name}: {folder} is no folder; expected one folder per class in it")
    return Path(folder)


def indexed(
    job: Job, wanted: Settings, described: Competition
) -> tuple[pd.DataFrame, dict[str, pd.DataFrame], pd.DataFrame]:
    """(index with groups and folds, tables of what was found on the way, descriptors of all images by id)."""
    how = job.params.prepare
    columns: dict[str, str] = {}  # id -> value of prepare.group_column

    def noted(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if row.group:
                columns[row.id] = row.group
            yield row

    for name, folder in how.external.items():
        _, left_out = external_rows(external_folder(name, folder), described)
        if left_out:
            job.echo(
                f"prepare: external {name}: {len(left_out)} folders are no class and are left out: {first(left_out)}"
            )
    with progress_bar(None, "reading images") as bar:
        table, thumbs = index.build(noted(all_rows(job, wanted, described)), len(described.classes), bar.update_to)
    looks = pd.DataFrame(embedding.describe(thumbs), index=table["id"])
    if job.options.like:
        job.echo(f"prepare: groups and folds as in {display_path(Path(job.options.like))}")
        table = index.like(table, Path(job.options.like))
        return table, {"series.csv": series.find(table, rows_of(looks, table))}, looks
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
    found["series.csv"] = members = series.find(table, rows_of(looks, table))
    if how.group_by == "column" and not columns:
        raise UserError(
            f"prepare.group_by: no row has a value of {how.group_column!r}; only the folder adapter reads a "
            f"group_column, this is {wanted.adapter}; set prepare.group_by=embedding or hash"
        )
    if how.group_by != "hash":
        names = columns if how.group_by == "column" else dict(zip(members["id"], members["series"]))
        table["group"] = folds.kept_together(table, names)
    table["fold"] = folds.assign(table, how.folds, how.seed)
    say_findings(job, found, inflation)
    return table, found, looks


def say_shape(job: Job, table: pd.DataFrame, support: pd.DataFrame, described: Competition) -> None:
    counts = ", ".join(f"{count:,} {part}" for part, count in table["part"].value_counts(sort=False).items())
    job.echo(f"prepare: {counts}, {len(described.classes)} classes; metric {described.metric}")
    error = folds.share_errors(support).max()
    job.echo(
        f"prepare: {support.shape[1]} folds, largest error of the class shares {error:.3f}; rows per class and fold: data/support.csv"
    )
    if thin := folds.thin_classes(support):
        job.echo(
            f"prepare: {len(thin)} classes are missing from some fold, e.g. {described.classes[thin[0]]}: their score is a guess"
        )
    for warning in small_class_warning(table.loc[table["fold"] >= 0, "label"].to_numpy(), len(described.classes)):
        job.echo(f"prepare: {warning}")


def say_findings(job: Job, found: Mapping[str, pd.DataFrame], inflation: leaks.Inflation) -> None:
    pairs, conflicts, bad = found["duplicates.csv"], found["conflicts.csv"], found["unreadable.csv"]
    if len(pairs):
        exact = int(pairs["exact"].sum())
        job.echo(
            f"prepare: {len(pairs):,} pairs of the same photo ({exact:,} byte for byte); none crosses a fold: data/duplicates.csv"
        )
    if len(conflicts):
        policy = job.params.prepare.label_conflicts
        job.echo(
            f"prepare: {conflicts['group'].nunique():,} photos stand under two labels (label_conflicts: {policy}): data/conflicts.csv"
        )
    if inflation.touched:
        job.echo(
            f"prepare: LEAK {inflation.touched:,} of {inflation.rows:,} test images are also labelled images: worth at most "
            f"{inflation.accuracy:.4f} of accuracy and {inflation.macro_recall:.4f} of macro recall: data/leaks.csv"
        )
    if removed := len(found["external_removed.csv"]):
        job.echo(
            f"prepare: {removed:,} external images are photos of the competition and were removed: data/external_removed.csv"
        )
    test = bad["part"] == "test"
    if test.any():
        job.echo(
            f"prepare: WARNING {int(test.sum()):,} test images cannot be read and will get the mean prediction: data/unreadable.csv"
        )
    if (~test).any():
        job.echo(
            f"prepare: {int((~test).sum()):,} labelled images cannot be read and were dropped: data/unreadable.csv"
        )


if __name__ == "__main__":
    main("prepare")
