"""Image files in a folder, found by id: an id is looked up among the files that are there, never made into a path."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from competition.config.errors import UserError, first
from competition.data.competition import Part, Row

SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif"}


def image_paths(folder: Path) -> list[str]:
    """Paths, relative to `folder`, of everything named like an image, sorted; hidden files and folders left out."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return sorted(
        path.as_posix() for path in found if not any(name.startswith((".", "__MACOSX")) for name in path.parts)
    )


class ImageFiles:
    """The image files of a raw folder, by every name a table may call them: path, path in its part, file name, stem."""

    def __init__(self, raw: Path) -> None:
        self.raw = raw
        self.paths = image_paths(raw)
        self._called: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            for name in _names(path):
                self._called[name].append(path)

    def find(self, ids: Iterable[str], part: str) -> dict[str, str]:
        """id -> relative path. Where train and test use the same names, the folder named after the part decides.

        Raises UserError with the count and the first ids when images are missing, or when two files answer to one id.
        """
        found: dict[str, str] = {}
        missing: list[str] = []
        ambiguous: list[str] = []
        for one in ids:
            paths = self._called.get(one, [])
            paths = [path for path in paths if _in_part(path, part)] or paths
            if len(paths) == 1:
                found[one] = paths[0]
            else:
                (ambiguous if paths else missing).append(one)
        if missing:
            folded = {name.casefold() for name in self._called}
            near = [one for one in missing if one.casefold() in folded]
            hint = f"; {len(near):,} of them differ from a file name only in upper and lower case" if near else ""
            raise UserError(f"{len(missing):,} {part} images are listed but not there, {first(missing)}{hint}")
        if ambiguous:
            files = first(self._called[ambiguous[0]], 2)
            raise UserError(
                f"{len(ambiguous):,} {part} ids fit more than one file, {first(ambiguous, 3)} (e.g. {files})"
            )
        return found

    def rows(self, ids: list[str], labels: list[int], part: Part, groups: list[str] | None = None) -> Iterator[Row]:
        """One row per id, in the order given."""
        found = self.find(ids, part)
        for one, label, group in zip(ids, labels, groups or [""] * len(ids), strict=True):
            yield Row(one, label, part, found[one], 0, (self.raw / found[one]).read_bytes(), group)


def _names(path: str) -> set[str]:
    whole = PurePosixPath(path)
    inside = whole.parts[1:] if len(whole.parts) > 1 else whole.parts
    names = {path, "/".join(inside), whole.name}
    return names | {str(PurePosixPath(name).with_suffix("")) for name in names}


def _in_part(path: str, part: str) -> bool:
    return any(folder.casefold().startswith(part) for folder in PurePosixPath(path).parts[:-1])
