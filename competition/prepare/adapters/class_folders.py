"""Class folders: train/<class>/..., test/...   or   <class>/..., test/..."""

from pathlib import Path, PurePosixPath

from competition.config.errors import UserError, first_few
from competition.prepare.adapters.files import image_paths, unread_images_note
from competition.prepare.adapters.layout import Layout, default_metric
from competition.prepare.adapters.tables import in_natural_order
from competition.prepare.competition import Competition, Settings
from competition.prepare.targets import resolve_metric, target_of_metric

VALIDATION_FOLDERS = ("val", "valid", "validation")


def layout_of_class_folders(raw: Path, settings: Settings) -> Layout:
    """Return the classes and ids by folder. Raises UserError for images outside the class folders."""
    inside = [PurePosixPath(path) for path in image_paths(raw)]
    top = {path.parts[0] for path in inside if len(path.parts) > 1}
    if not inside:
        raise UserError(
            "neither a table nor a JPEG, PNG, WEBP, BMP or GIF image was found in competition.source; it should hold one "
            "folder of images per class, or images and a train.csv with ids and labels"
            + "".join(f"; {note}" for note in unread_images_note(raw))
        )
    test = [str(path) for path in inside if path.parts[0] == "test"]
    parts = ("train", *VALIDATION_FOLDERS)
    train = [path for path in inside if (path.parts[0] in parts if "train" in top else path.parts[0] != "test")]
    loose = [str(path) for path in train if len(path.parts) < (3 if "train" in top else 2)]
    if loose:
        raise UserError(
            f"{len(loose):,} images lie outside the class folders, {first_few(loose)}; move each into train/<class>/"
        )
    if settings.group_column:
        raise UserError(
            f"prepare.group_column: {settings.group_column!r} was asked for, but class folders have no train.csv to "
            "hold it; add a train.csv, or set prepare.group_by=embedding"
        )
    ignored = len(inside) - len(train) - len(test)
    unused = [f"{ignored:,} images outside train/, val/ and test/ are ignored"] if ignored else []
    target = settings.target or target_of_metric(settings.metric) or "single"
    if target in ("multi", "regression"):
        raise UserError(
            f"competition.target: {target} was asked for, but class folders give each image one class; add a train.csv"
        )
    folder_of = {str(path): path.parent.name for path in train}
    names = in_natural_order(sorted(set(folder_of.values())))
    columns = names if settings.predicts == "probabilities" else [settings.label_column or "label"]
    competition = Competition(
        name=settings.name,
        slug=settings.slug,
        classes=tuple(names),
        metric=resolve_metric(target, settings.metric, default_metric(target, "label")),
        target=target,
        predicts=settings.predicts or "label",
        id_column=settings.id_column or "id",
        prediction_columns=tuple(columns),
        label_values=tuple(names),
        notes=(f"no train.csv: the {len(names)} folder names are the classes, ids are the paths of the files", *unused),
    )
    number = {name: n for n, name in enumerate(names)}
    labels = [number[name] for name in folder_of.values()]
    return Layout(competition, (list(folder_of), labels, [""] * len(labels)), test)
