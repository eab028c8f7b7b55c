"""Image files in a folder by id. Ids are looked up among the existing files and never used as paths."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from posixpath import splitext

from competition.config.errors import UserError, counted, first_few
from competition.files.image_codec import SUFFIXES

UNREAD_IMAGES = {".heic", ".heif", ".jp2", ".jxl", ".dng", ".raw", ".psd", ".svg", ".ico"}
UNREAD_TABLES = {".xlsx", ".xls", ".ods", ".parquet", ".feather"}
UNSEARCHED = ("private", "__MACOSX")  # the user's own solution; copies of attributes that macOS puts into archives


def unread_files_notes(folder: Path, tables_too: bool = False) -> list[str]:
    """One sentence each on images (HEIC of telephones) and tables (spreadsheets) in formats that are not read.

    tables_too: also on the .csv files below the top of the folder, where no table is looked for.
    """
    paths = list(relative_files(folder))
    suffix_of = {path: splitext(path)[1].lower() for path in paths}
    nested = [path for path in paths if "/" in path and suffix_of[path] == ".csv"]
    visible = sorted(path for path in nested if not path.startswith((".", *UNSEARCHED)) and "/." not in path)
    notes = []
    if visible and tables_too:
        place = "a table of labels belongs at the top of competition.source, as train.csv"
        notes.append(f"{first_few(visible, 3)} inside a folder of images not used: {place}")
    for kind, unread, remedy in (
        ("image", UNREAD_IMAGES, "convert to JPEG or PNG what is to be used"),
        ("table", UNREAD_TABLES, "save the one with the labels, if any, as train.csv"),
    ):
        if suffixes := [suffix for suffix in suffix_of.values() if suffix in unread]:
            notes.append(f"{counted(len(suffixes), kind)} ({', '.join(sorted(set(suffixes)))}) left out: {remedy}")
    return notes


def image_paths(folder: Path) -> list[str]:
    """Return the sorted paths, relative to `folder`, of the files with an image suffix.

    Hidden files and folders, and the copies of attributes that macOS puts into archives, are left out.
    """
    paths = [path for path in relative_files(folder) if splitext(path)[1].lower() in SUFFIXES]
    return sorted(path for path in paths if "/." not in f"/{path}" and "/__MACOSX" not in f"/{path}")


def relative_files(folder: Path) -> Iterator[str]:
    """Yield the paths of all files below the folder, relative to it, with slashes: as texts, which take a tenth of the time of a Path."""
    for place, _, names in os.walk(folder):
        above = Path(place).relative_to(folder).as_posix()
        yield from names if above == "." else (f"{above}/{name}" for name in names)


class ImageFiles:
    """The image files of a raw folder by the names that tables may use: path, path within the part, file name; each also without suffix."""

    def __init__(self, raw: Path) -> None:
        self.paths = image_paths(raw)

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        """Each name -> the paths that it may mean. Class folders need none of it."""
        paths_of = defaultdict[str, list[str]](list)
        for path in self.paths:
            for name in set(names_of(path)):
                paths_of[name].append(path)
        return paths_of

    @cached_property
    def _folded(self) -> set[str]:
        """The names in one letter case."""
        return {name.casefold() for name in self._by_name}

    def find(self, ids: Iterable[str], part: str, id_column: str) -> dict[str, str]:
        """Return id -> relative path, "" if there is no image file at all.

        If train and test use the same names, the folder named after the part is used.

        id_column: of the table, for the message.
        Raises UserError with the count and the first ids if images are missing or an id matches several files.
        """
        if not self.paths:  # for predictions made elsewhere; a member that is trained here needs images (`Prepared`)
            return dict.fromkeys(ids, "")
        path_of: dict[str, str] = {}
        missing: list[str] = []
        ambiguous: list[str] = []
        name_of = self._names_of(list(ids))
        for row_id, name in name_of.items():
            paths = self._by_name.get(name, [])
            paths = [path for path in paths if is_in_part(path, part)] or paths
            if len(paths) == 1:
                path_of[row_id] = paths[0]
            else:
                (ambiguous if paths else missing).append(row_id)
        problems = []
        if missing:
            near = [row_id for row_id in missing if name_of[row_id].casefold() in self._folded]
            hint = f"; only in letter case {len(near):,} of them differ from a file name" if near else ""
            problems.append(
                f"no file was found for {counted(len(missing), f'{part} image')} of the table, {first_few(missing)}, in column "
                f"{id_column!r} (competition.id_column){hint}; add the files, or remove their rows from the table"
            )
        if ambiguous:
            files = first_few(self._by_name[name_of[ambiguous[0]]], 2)
            problems.append(
                f"more than one file matches each of {counted(len(ambiguous), f'{part} id')} of the table, "
                f"{first_few(ambiguous, 3)} (e.g. {files})"
            )
        if problems:
            raise UserError("\n".join(problems))
        return path_of

    def _names_of(self, ids: Sequence[str]) -> dict[str, str]:
        """Id -> the name to look up: the id, or what remains without the folders that all ids have in common.

        Tables made elsewhere hold /home/me/photos/a/1.jpg, C:\\photos\\1.jpg or https://host/a/1.jpg. They are shortened only
        as far as most of them then name files.
        """
        if all(row_id in self._by_name for row_id in ids):
            return {row_id: row_id for row_id in ids}
        parts = {row_id: row_id.replace("\\", "/").split("/") for row_id in ids}
        folders = [names[:-1] for names in parts.values()]
        shared = len(list(takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))))
        forms = [{row_id: row_id for row_id in ids}]
        forms += [{row_id: "/".join(names[n:]) for row_id, names in parts.items()} for n in range(shared + 1)]
        return max(forms, key=lambda names: sum(name in self._by_name for name in names.values()))

    def known_share(self, names: Iterable[str]) -> float:
        """Share of the names, 0 to 1, that are names of image files, if need be in other letter case; 0 for no names."""
        known = [name.casefold() in self._folded for name in self._names_of(list(names)).values()]
        return sum(known) / len(known) if known else 0.0


def names_of(path: str) -> list[str]:
    """The names that a table may use for an image: path, path within the part, file name; then each without suffix."""
    names = [path, path.partition("/")[2] or path, path.rpartition("/")[2]]
    return [*names, *(splitext(name)[0] for name in names)]


def unlisted_test_ids(paths: Sequence[str], path_of: Mapping[str, str]) -> list[str]:
    """Ids of the images in a folder named test...: written like the training ids, or the paths where these would not be unique.

    path_of: training id -> path of its image.
    """
    listed = set(path_of.values())
    tests = [path for path in paths if path not in listed and is_in_part(path, "test")]
    for form in range(len(names_of(""))):
        ids = [names_of(path)[form] for path in tests]
        is_form = all(names_of(path)[form] == row_id for row_id, path in path_of.items())
        if is_form and len({*ids, *path_of}) == len(ids) + len(path_of):
            return ids
    return tests


def is_in_part(path: str, part: str) -> bool:
    """Whether the image is in a folder named train... or test..."""
    return any(folder.startswith(part) for folder in path.casefold().split("/")[:-1])
