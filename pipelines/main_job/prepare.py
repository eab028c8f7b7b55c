"""Index the images, group duplicates and series, assign folds and write one set of records per fold."""

import shutil
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from competition.config.errors import UserError, counted, first_few
from competition.ensemble.rare_classes import small_class_warning
from competition.files import image_codec as images
from competition.files.manifest import (
    Stored,
    atomic_write,
    damaged_files,
    sha256,
    write_json,
)
from competition.prepare import duplicates, extra_columns, folds, index, leaks, record_files, series, shift
from competition.prepare.adapter_types import SAMPLE, Competition, Row, Settings, settings_of, with_metric
from competition.prepare.adapters import adapter_named
from competition.prepare.adapters.folder import external_rows, read_layout
from competition.prepare.label_issues import misspelt_classes
from competition.prepare.targets import check_training
from competition.report.caveats import series_line, shift_line
from competition.report.pictures import TILE, contact_sheet
from competition.submission.submission_csv import check_sample
from pipelines.terminal.job import Computed, Job
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar

MOST_CLASSES = 20  # that are printed


def run(job: Job) -> None:
    """raw/ -> data/: competition.json, index.csv, duplicates.csv, series.csv, shift.json, sample_submission.csv, records/"""
    raw, params = job.workspace.require(job.path("raw.json")), job.params.prepare
    # Data do not depend on the metric: the description holds the competition's own, load_prepared puts in the user's.
    settings = settings_of(job.params).of_data()
    depends = {
        "raw": raw.files,
        "prepare": params,
        "competition": settings,
        **({"folds_from": sha256(Path(job.options.folds_from))} if job.options.folds_from else {}),
        **job.params.plugins.dependencies(ADAPTERS=(settings.adapter,)),
    }
    manifest, competition = job.path("data", "manifest.json"), None
    if job.options.force or not Stored(manifest, depends).is_current:
        damaged = list(damaged_files(job.path("raw.json"), raw))  # one flipped byte of a JPEG decodes silently
        if damaged:
            files = f"{len(damaged):,} of {len(raw.files):,} raw files are missing or damaged, {first_few(damaged, 3)}"
            raise UserError(f"{files}; `make download` fetches them again")
        competition = described(job, settings)  # before the data that are there are removed
    job.cached("prepare", manifest, depends, lambda _: prepare(job, settings, competition or described(job, settings)))


def described(job: Job, settings: Settings) -> Competition:
    """The competition in raw/. Raises UserError for parameters that do not fit to it, before an image is read."""
    competition = adapter_named(settings.adapter, job.params.plugins).describe(job.path("raw"), settings)
    with_metric(competition, job.params.competition.metric)
    for name, member in job.params.members.items():  # training checks it again
        check_training(competition.targets.kind, name, member.train)
    return competition


def prepare(job: Job, settings: Settings, competition: Competition) -> Computed:
    data, params = job.path("data"), job.params.prepare
    job.echo(*(f"prepare: {note}" for note in competition.notes))
    table, tables, descriptors = build_index(job, settings, competition)
    if (table["part"] == "test").any():  # else nothing can be submitted
        check_sample(job.path("raw", SAMPLE), table.loc[table["part"] == "test", "id"], competition)
    # Duplicates and series stay on one side of each split between training and test rows.
    together = folds.merge_equal_names(table, dict(zip(tables["series.csv"]["id"], tables["series.csv"]["series"])))
    difference, tables["shift.csv"] = shift.compare(table, descriptors.loc[table["id"]].to_numpy(), together)
    require_disk_space(table, data)
    support = folds.support(table, len(competition.classes), competition.targets)
    tables["support.csv"] = support.reset_index()
    (data / extra_columns.FILE).unlink(missing_ok=True)
    if settings.adapter == "folder" and (other := read_layout(job.path("raw"), settings).columns) is not None:
        tables[extra_columns.FILE] = other
    for name, content in tables.items():
        with atomic_write(data / name) as temporary:
            content.to_csv(temporary, index=False, lineterminator="\n")
    write_json(data / "shift.json", difference or {})
    index.save(table, data / "index.csv")
    (data / "competition.json").write_bytes(competition.json_bytes())
    shutil.copyfile(job.path("raw", SAMPLE), data / SAMPLE)
    shutil.rmtree(data / "records", ignore_errors=True)
    tiles = series.sheet_tiles(tables["series.csv"], table)
    image_bytes: dict[str, bytes] = {}
    names: list[str] = []
    if index.has_images(table):
        with Bar(len(table), "writing records", "images") as bar:
            rows = collect_bytes(all_rows(job, settings, competition), tiles, image_bytes)
            shard_bytes = params.shard_megabytes * 1_000_000
            names = record_files.write(rows, table, str(data / "records"), shard_bytes, bar.update_to)
    (data / "series.png").unlink(missing_ok=True)
    if tiles:
        pictures = [images.decode(image_bytes[row_id], TILE, params.fit) for row_id in tiles]
        contact_sheet(pictures, list(tiles.values()), data / "series.png")
    shown = display_path(data)
    similar = [*series_line(table, tables["series.csv"], params.group_by, shown), *shift_line(difference, shown)]
    job.echo(*(f"prepare: {line}" for line in (*lines_of_shape(job, table, support, competition), *similar)))
    other_files = ("shift.json", "index.csv", "competition.json", SAMPLE, *(["series.png"] if tiles else []))
    files = [data / name for name in (*tables, *other_files)]
    result = {
        "rows": {part: int(count) for part, count in table["part"].value_counts(sort=False).items()},
        "found": {name: len(content) for name, content in tables.items()},
    }
    return [*files, *(data / "records" / name for name in names)], result


def require_disk_space(table: pd.DataFrame, data: Path) -> None:
    """Raise UserError if the records of these rows will not fit on the disk, in the place of the present ones."""
    needed = int(table["bytes"].sum())
    free = shutil.disk_usage(data.parent).free + sum(file.stat().st_size for file in data.glob("records/*"))
    if needed > free:
        raise UserError(
            f"the records of {counted(len(table), 'image')} need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free in "
            f"{display_path(data.parent)}: free disk space, or link work/ to a larger disk"
        )


def collect_bytes(rows: Iterable[Row], ids: Container[str], image_bytes: dict[str, bytes]) -> Iterator[Row]:
    """Yield the rows unchanged; store the encoded images of `ids` in `image_bytes`."""
    for row in rows:
        if row.id in ids:
            image_bytes[row.id] = row.data
        yield row


def all_rows(job: Job, settings: Settings, competition: Competition) -> Iterator[Row]:
    """Yield the rows of the competition, then those of the external folders."""
    yield from adapter_named(settings.adapter, job.params.plugins).rows(job.path("raw"), settings)
    for name, folder in job.params.prepare.external.items():
        yield from external_rows(name, Path(folder), competition)[0]


def build_index(
    job: Job, settings: Settings, competition: Competition
) -> tuple[pd.DataFrame, dict[str, pd.DataFrame], pd.DataFrame]:
    """Return the index with groups and folds, the tables to write by file name, and image descriptors by id."""
    params = job.params.prepare
    column_values: dict[str, str] = {}  # id -> value of prepare.group_column

    def with_column_values(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if row.group:
                column_values[row.id] = row.group
            yield row

    for name, folder in params.external.items():
        _, skipped_folders = external_rows(name, Path(folder), competition)
        if skipped_folders:
            ignored = f"{len(skipped_folders)} folders are not classes and are ignored: {first_few(skipped_folders)}"
            job.echo(f"prepare: external {name}: {ignored}")
    rows = with_column_values(all_rows(job, settings, competition))
    with Bar(None, "reading images") as bar:
        table, thumbs = index.build(rows, competition.label_count, bar.update_to)
    index.require_images(table, job.params.members)
    descriptors = pd.DataFrame(series.image_descriptors(thumbs), index=table["id"])
    if job.options.folds_from:
        job.echo(f"prepare: groups and folds as in {display_path(Path(job.options.folds_from))}")
        table = index.folds_from(table, Path(job.options.folds_from))
        return table, {"series.csv": series.find_series(table, descriptors.loc[table["id"]].to_numpy())}, descriptors
    pairs = duplicates.duplicate_pairs(table, thumbs, bits=params.near_bits, pixels=params.near_pixels)
    table["group"] = duplicates.merged(table["group"].to_numpy(), pairs["a"].to_numpy(), pairs["b"].to_numpy())
    ids = table["id"].to_numpy()
    tables = {
        "duplicates.csv": pairs.assign(a=ids[pairs["a"]], b=ids[pairs["b"]]),
        "conflicts.csv": duplicates.conflicts(table, competition),
        "leaks.csv": leaks.find_leaks(table),
    }
    leak = leaks.leak_sentence(table, tables["leaks.csv"], competition.targets.kind)
    table, tables["external_removed.csv"] = leaks.without_leaking_external(table)
    table = duplicates.without_conflicts(table, params.label_conflicts, competition)
    table, unreadable = index.without_bad_images(table, params.bad_images)
    tables["unreadable.csv"] = unreadable[["id", "part", "shard", "problem"]]
    tables["series.csv"] = series_table = series.find_series(table, descriptors.loc[table["id"]].to_numpy())
    if params.group_by == "column" and not column_values:
        remedy = "only the folder adapter reads group_column; set prepare.group_by=embedding or hash"
        raise UserError(f"prepare.group_by: no row has a value of {params.group_column!r}; {remedy}")
    grouped_by = ""
    if params.group_by != "hash":
        grouped_by = f"prepare.group_by: {params.group_by} {params.group_column}".rstrip()
        names = column_values if params.group_by == "column" else dict(zip(series_table["id"], series_table["series"]))
        table["group"] = folds.merge_equal_names(table, names)
    table["fold"] = folds.assign(table, params.folds, params.seed, competition.targets, grouped_by)
    data, policy = display_path(job.path("data")), params.label_conflicts
    job.echo(*(f"prepare: {line}" for line in lines_of_findings(tables, leak, policy, data)))
    return table, tables, descriptors


def lines_of_shape(job: Job, table: pd.DataFrame, support: pd.DataFrame, competition: Competition) -> Iterator[str]:
    """How many images, classes and rows of each there are.  support: rows of each class and fold."""
    counts = ", ".join(f"{count:,} {part}" for part, count in table["part"].value_counts(sort=False).items())
    kind, names = competition.targets.kind, competition.classes
    classes = "numbers to predict" if kind == "regression" else counted(len(names), "class", "classes")
    yield f"{counts}, {classes}; metric {with_metric(competition, job.params.competition.metric).metric}"
    labelled = table[table["fold"] >= 0]
    labels = competition.targets.of(labelled["label"].to_numpy())
    if kind == "regression":
        means = ", ".join(f"{labels[labelled['fold'] == fold].mean():.4g}" for fold in support)
        yield f"{support.shape[1]} folds, stratified by tenths of the values; mean of each fold {means}"
        return
    rows = support.sum(axis=1).tolist()
    listed = ", ".join(f"{name} {count:,}" for name, count in list(zip(names, rows))[:MOST_CLASSES])
    if len(rows) > MOST_CLASSES:
        listed += f" and {len(rows) - MOST_CLASSES} more; {min(rows):,} to {max(rows):,} rows each"
    yield f"rows of each class: {listed}"
    rows_of = dict(zip(names, rows, strict=True))
    for name, other in misspelt_classes(rows_of).items():
        yield f"WARNING class {name!r} ({counted(rows_of[name], 'row')}) is nearly {other!r} ({rows_of[other]:,}): is it misspelt?"
    if job.options.verbose:
        yield f"{support.shape[1]} folds; rows per class and fold: {display_path(job.path('data', 'support.csv'))}"
    if thin := support.index[(support == 0).any(axis=1)].tolist():  # the macro-F1 of that fold counts them as 0
        without = counted(len(thin), "class", "classes")
        yield f"{without} without a row in some fold, e.g. {names[thin[0]]!r}: the score there is a guess"
    yield from small_class_warning(labels, len(names))


def lines_of_findings(tables: Mapping[str, pd.DataFrame], leak: str, policy: str, data: str) -> Iterator[str]:
    """What is wrong with the images.

    leak: of leaks.leak_sentence.  policy: prepare.label_conflicts.  data: the folder of the tables, for the lines.
    """
    pairs, conflicts, unreadable = tables["duplicates.csv"], tables["conflicts.csv"], tables["unreadable.csv"]
    if len(pairs):
        alike = f"{counted(len(pairs), 'pair')} of images that are the same or nearly so ({int(pairs['exact'].sum()):,} byte for byte)"
        yield f"{alike}; none crosses a fold: {data}/duplicates.csv"
    if len(conflicts):
        photos = f"{counted(conflicts['group'].nunique(), 'photo')} with two labels"
        yield f"{photos} (prepare.label_conflicts: {policy}): {data}/conflicts.csv"
    if leak:
        yield f"LEAK {leak}: {data}/leaks.csv"
    if removed := len(tables["external_removed.csv"]):
        yield f"removed {counted(removed, 'external image')} that the competition has, too: {data}/external_removed.csv"
    tests = int((unreadable["part"] == "test").sum())
    if tests:
        yield f"WARNING {counted(tests, 'unreadable test image')} will get the mean prediction: {data}/unreadable.csv"
    if dropped := len(unreadable) - tests:
        yield f"dropped {counted(dropped, 'labelled image')} that cannot be read: {data}/unreadable.csv"
