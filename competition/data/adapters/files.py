"""Image files in a folder by id. Ids are looked up among the existing files and never used as paths."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from competition.config.errors import UserError, first_few
from competition.data.competition import Part, Row

SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif"}


def image_paths(folder: Path) -> list[str]:
    """Return the sorted paths, relative to `folder`, of all files with an image suffix, without hidden files and folders."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return sorted(
        path.as_posix() for path in paths if not any(name.startswith((".", "__MACOSX")) for name in path.parts)
    )


class ImageFiles:
    """The image files of a raw folder by the names that tables may use: path, path within the part, file name, stem."""

    def __init__(self, raw: Path) -> None:
        self.raw = raw
        self.paths = image_paths(raw)
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            for name in _names(path):
                self._by_name[name].append(path)

    def find(self, ids: Iterable[str], part: str) -> dict[str, str]:
        """Return id -> relative path. If train and test use the same names, the folder named after the part is used.

        Raises UserError with the count and the first ids if images are missing or an id matches several files.
        """
        path_of: dict[str, str] = {}
        missing: list[str] = []
        ambiguous: list[str] = []
        for row_id in ids:
            paths = self._by_name.get(row_id, [])
            paths = [path for path in paths if _in_part(path, part)] or paths
            if len(paths) == 1:
                path_of[row_id] = paths[0]
            else:
                (ambiguous if paths else missing).append(row_id)
        if missing:
            folded = {name.casefold() for name in self._by_name}
            near = [row_id for row_id in missing if row_id.casefold() in folded]
            hint = f"; {len(near):,} of them differ from a file name only in letter case" if near else ""
            raise UserError(f"{len(missing):,} {part} images are listed but do not exist, {first_few(missing)}{hint}")
        if ambiguous:
            files = first_few(self._by_name[ambiguous[0]], 2)
            raise UserError(
                f"{len(ambiguous):,} {part} ids match more than one file, {first_few(ambiguous, 3)} (e.g. {files})"
            )
        return path_of

    def rows(self, ids: list[str], labels: list[int], part: Part, groups: list[str] | None = None) -> Iterator[Row]:
        """Yield one row per id, in order."""
        path_of = self.find(ids, part)
        for row_id, label, group in zip(ids, labels, groups or [""] * len(ids), strict=True):
            path = path_of[row_id]
            yield Row(row_id, label, part, path, 0, (self.raw / path).read_bytes(), group)


def _names(path: str) -> set[str]:
    parts = PurePosixPath(path).parts
    names = {path, "/".join(parts[1:] or parts), parts[-1]}
    return names | {str(PurePosixPath(name).with_suffix("")) for name in names}


def _in_part(path: str, part: str) -> bool:
    return any(folder.casefold().startswith(part) for folder in PurePosixPath(path).parts[:-1])
