"""Class folders: train/<class>/..., test/...   or   <class>/..., test/...   Which level holds the classes is seen in the structure."""

import re
from collections.abc import Collection, Mapping, Sequence

from competition.config.errors import UserError, counted, first_few
from competition.files.image_codec import FORMAT_NAMES
from competition.prepare.adapter_types import Competition, Layout, Settings
from competition.prepare.adapters.tables import in_natural_order
from competition.prepare.targets import default_metric, resolve_metric, target_of_metric

SPLIT_WORDS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test", "testing": "test",
}  # fmt: skip
Folders = tuple[str, ...]  # the folders above an image, from the top


def split_named(folder: str) -> str:
    """ "train", "val" or "test" if the name of a folder holds such a word (Training, seg_train, test_images), else ""."""
    words = re.split(r"[^a-z]+", folder.casefold())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")


def layout_of_class_folders(paths: Sequence[str], settings: Settings) -> Layout:
    """Classes and rows of a source without a table, from the sorted paths of its images, which are the ids.

    Raises UserError without images, for images outside the class folders, and for settings that need a table.
    """
    if not paths:
        raise UserError(
            f"neither a table nor a {FORMAT_NAMES} image was found in competition.source; it should hold one "
            "folder of images per class, or images and a train.csv with ids and labels"
        )
    if settings.group_column:
        raise UserError(f"prepare.group_column: no class folder has {settings.group_column!r}; add a train.csv with it")
    target = settings.target or target_of_metric(settings.metric) or "single"
    if target in ("multi", "regression"):
        raise UserError(f"competition.target: {target} was asked for; class folders give one class each: add train.csv")
    parts_of = {path: tuple(path.split("/")) for path in paths}
    splits = _split_folders(parts_of.values())
    test = [path for path, parts in parts_of.items() if splits.get(parts[0]) == "test"]
    class_of = _classes_of_images(parts_of, splits, settings.class_level)
    names = in_natural_order(sorted(set(class_of.values())))
    ignored = len(paths) - len(class_of) - len(test)
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
        notes=(
            f"no train.csv: the {len(names)} folder names are the classes, ids are the paths of the files",
            *([f"{counted(ignored, 'image')} outside train/, val/ and test/ ignored"] if ignored else []),
        ),
    )
    number = {name: n for n, name in enumerate(names)}
    labels = [number[name] for name in class_of.values()]
    path_of = {path: path for path in (*class_of, *test)}
    validation = {path for path, parts in parts_of.items() if splits.get(parts[0]) == "val"}
    return Layout(competition, list(class_of), labels, [""] * len(labels), test, path_of, validation)


def _split_folders(paths: Collection[tuple[str, ...]]) -> dict[str, str]:
    """Top folder -> its part ("train", "val", "test"), of those that hold a part of the images instead of a class.

    A name that only contains the word, such as seg_train, counts if every top folder is one: train_station may be a class.
    Without a folder of training images, only test/ is a part; a `train` of images beside other folders is a class as well.
    paths: of the images, each by its parts.
    """
    tops = {parts[0] for parts in paths if len(parts) > 1}
    splits = {top: part for top in tops if (part := split_named(top))}
    if len(splits) < len(tops):
        splits = {top: part for top, part in splits.items() if top.casefold() in SPLIT_WORDS}
    nested = {parts[0] for parts in paths if len(parts) > 2}
    train = {top for top, part in splits.items() if part == "train"}
    if train & nested or (train and len(splits) == len(tops)):
        return splits
    return {top: part for top, part in splits.items() if part == "test"}


def _classes_of_images(parts_of: Mapping[str, tuple[str, ...]], splits: dict[str, str], level: int) -> dict[str, str]:
    """Path -> name of the class, of the labelled images.  level: competition.class_level, 0 = by structure."""
    has_train = "train" in splits.values()
    unnamed = "" if has_train else "train"
    labelled = [path for path, parts in parts_of.items() if splits.get(parts[0], unnamed) in ("train", "val")]
    folders = {path: parts_of[path][1 if parts_of[path][0] in splits else 0 : -1] for path in labelled}
    if loose := [path for path, above in folders.items() if not above]:
        raise UserError(
            f"{counted(len(loose), 'image')} outside the class folders, {first_few(loose)}; move each into train/<class>/"
        )
    names: set[str] = set()  # of the first level of the training images
    for top in sorted(splits, key=lambda top: splits[top]) or [""]:  # train before val
        part = [path for path in labelled if not top or parts_of[path][0] == top]
        while part and min(len(folders[path]) for path in part) > 1 and not level:
            first = {folders[path][0] for path in part}
            if len(first) > 1 or first <= names:
                break
            # One folder around the classes, as train/train/<class>.
            folders |= {path: folders[path][1:] for path in part}
        names |= {folders[path][0] for path in part}
    level = level or _class_level(folders.values())
    if shallow := [path for path, above in folders.items() if len(above) < level]:
        raise UserError(f"competition.class_level: {level} was found, {first_few(shallow)} in fewer folders; lower it")
    return {path: above[level - 1] for path, above in folders.items()}


def _class_level(above_images: Collection[Folders]) -> int:
    """The level of the class folders among the folders above each image, from 1.

    It is the first, unless a folder there holds no image itself and several folders: either may then be the classes.
    """
    with_images = {above[0] for above in above_images if len(above) == 1}
    inner = {(above[0], above[1]) for above in above_images if len(above) > 1 and above[0] not in with_images}
    if len(inner) == len({folder for folder, _ in inner}):
        return 1
    firsts, seconds = (
        in_natural_order(sorted({above[level] for above in above_images if len(above) > level})) for level in (0, 1)
    )
    raise UserError(
        f"the folders {first_few(firsts, 3)} hold folders of their own ({first_few(seconds, 3)}), and it is not certain which are the "
        f'classes: set SET="competition.class_level=1" for the {len(firsts)} outer ones or =2 for the {len(seconds)} inner ones'
    )
