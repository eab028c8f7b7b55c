"""Move results of the earlier layout, members/<member>/fold<k>/ and tune/<member>/best.json, into the folders of their runs.

Every result keeps its place until its manifests are rewritten, and is then moved by one rename: a process killed here is
continued by the next command. The earlier layout did not record the code; its models count as trained by the present one.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from competition.artifacts.code_digest import code_digest
from competition.artifacts.dependencies import set_newest_blend
from competition.artifacts.earlier_layout import MOVING, has_earlier_layout
from competition.artifacts.manifest import (
    Manifest,
    atomic_write,
    digest_of,
    read_manifest,
    sha256,
    to_plain,
    write_json,
)
from competition.artifacts.runs import RUN_FILE, RUN_FOLDER, run_content, run_folder
from competition.artifacts.studies import DIGITS
from competition.config.params import Member, stated_keys
from competition.data.competition import Competition
from competition.data.prepared import data_digest

LEFT = "unmoved.txt"  # under members/: what was named before


def migrate(work: Path) -> str:
    """Move what can be identified. Returns one sentence for the user; "" if there is nothing new to say."""
    described = work / "data" / "competition.json"
    if not has_earlier_layout(work) or not described.is_file():
        return ""
    with FileLock(work / "migration.lock", timeout=600):
        migration = _Migration(work)
        models, left = migration.move_models()
        studies = migration.move_studies()
        blends = migration.move_blend()
        migration.forget_metric_of_raw_files()
    left_path = work / "members" / LEFT
    before = left_path.read_text(encoding="utf-8").splitlines() if left_path.is_file() else []
    if left != before:
        with atomic_write(left_path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in left), encoding="utf-8")
    counts = (
        f"{models} fold model{'' if models == 1 else 's'}, {studies} {'study' if studies == 1 else 'studies'} and "
        f"{blends} blend{'' if blends == 1 else 's'}"
    )
    moved = f"{counts} of the earlier layout were moved"
    sentence = f"{moved} into the folders of their runs; they count as trained by the present code" if models else moved
    remaining = f"; not identified and left where they are: {', '.join(left)}" if left else ""
    return f"runs: {sentence}{remaining}" if models + studies + blends or left != before else ""


class _Migration:
    def __init__(self, work: Path) -> None:
        self.work, data = work, work / "data"
        self.metric = Competition.load(data / "competition.json").metric
        self.data_digests = {  # earlier digest of these data -> the present one
            sha256(data / "index.csv") + sha256(data / "competition.json"): data_digest(data)
        }

    def move_models(self) -> tuple[int, list[str]]:
        """Number of moved models, and those that stay with the reason. Teachers are moved before their students."""
        moved, stuck = 0, True
        while stuck:
            stuck = False
            left = []
            for folder, name in self._model_folders():
                problem = self._move_model(folder, name)
                if problem:
                    left.append(f"{folder.relative_to(self.work).as_posix()} ({problem})")
                else:
                    moved, stuck = moved + 1, True  # another student may find its teacher now
        for folder in (self.work / "members").glob("*/without"):
            if not any(folder.iterdir()):
                folder.rmdir()
        return moved, left

    def _model_folders(self) -> Iterator[tuple[Path, str]]:
        members = self.work / "members"
        for folder in sorted([*members.glob("*/fold*"), *members.glob("*/without/*")]):
            if folder.is_dir():
                yield folder, folder.relative_to(members).parts[0]

    def _move_model(self, folder: Path, name: str) -> str:
        """Move one model; "" or the reason why it stays."""
        manifest = read_manifest(folder / "manifest.json")
        if manifest is None:
            return "unfinished"
        if "code" in manifest.depends:  # rewritten by a migration that was killed
            depends = manifest.depends
        else:
            present = self._fold_dependencies(manifest.depends)
            if present is None:
                return "its parameters or its teachers are of another version"
            depends = present
        of_run = {key: value for key, value in depends.items() if key not in ("fold", "teacher_weights")}
        target_run = run_folder(self.work, name, digest_of(of_run))
        target = target_run / folder.relative_to(self.work / "members" / name)
        if target.exists():
            return f"{target.relative_to(self.work).as_posix()} exists"
        self._rewrite_data(folder / "soft" / "manifest.json")
        self._move_views(folder)
        if "code" not in manifest.depends:
            _rewrite(folder / "manifest.json", manifest, depends, {"metric": self.metric})
        if not (target_run / RUN_FILE).is_file():
            write_json(target_run / RUN_FILE, run_content(name, digest_of(of_run), of_run, 0, ()))
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        return ""

    def _subject(self, depends: Mapping[str, Any]) -> dict[str, Any] | None:
        """The data and the member of an earlier result in the present form; None if they are of another version."""
        try:
            member = TypeAdapter(Member).validate_python(depends["member"])
            data = self.data_digests.get(depends["data"], depends["data"])
            stated = stated_keys(replace(member, seeds=1))
            return {"data": data, "fit": depends["fit"], "member": stated, "weights": depends["weights"]}
        except (KeyError, ValidationError):
            return None

    def _fold_dependencies(self, depends: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a model of the earlier layout depends on in the present form; None if that cannot be found out."""
        subject = self._subject(depends)
        if subject is None or not {"teachers", "tuned_folds", "fold"} <= depends.keys():
            return None
        teachers = {teacher: self._run_with_weights(teacher, w) for teacher, w in depends["teachers"].items()}
        if None in teachers.values():
            return None
        present = {
            **subject,
            "teachers": {teacher: [digest] for teacher, digest in teachers.items()},
            "tuned_folds": depends["tuned_folds"],
            "code": code_digest(),
            "fold": depends["fold"],
            "teacher_weights": {teacher: [weights] for teacher, weights in depends["teachers"].items()},
        }
        if subject["member"]["train"].get("patience"):
            present["metric"] = self.metric
        return present

    def _run_with_weights(self, teacher: str, weights: Mapping[str, str]) -> str | None:
        """Digest of the teacher's run, already moved, whose models (excluded folds as text) have these weights."""
        names = {model: model.strip("()").replace(", ", "-") for model in weights}
        for run in (self.work / "members" / teacher).glob("*"):
            if not RUN_FOLDER.fullmatch(run.name):
                continue
            folders = {m: run / (f"fold{n}" if n.isdecimal() else f"without/{n}") for m, n in names.items()}
            manifests = {model: read_manifest(folder / "manifest.json") for model, folder in folders.items()}
            if weights and all(
                manifest is not None and manifest.files.get("weights.npz") == weights[model]
                for model, manifest in manifests.items()
            ):
                return str(json.loads((run / RUN_FILE).read_text(encoding="utf-8"))["digest"])
        return None

    def _rewrite_data(self, path: Path) -> bool:
        """Write the present digest of the data into a manifest; False if there is none."""
        if manifest := read_manifest(path):
            data = manifest.depends.get("data", "")
            _rewrite(path, manifest, {**manifest.depends, "data": self.data_digests.get(data, data)})
        return manifest is not None

    def _move_views(self, folder: Path) -> None:
        """views/ -> views/<digest>/"""
        views, moving = folder / "views", folder / f"views{MOVING}"
        if self._rewrite_data(views / "manifest.json"):
            views.rename(moving)
        if moving.exists() and (manifest := read_manifest(moving / "manifest.json")):
            views.mkdir(exist_ok=True)
            moving.rename(views / manifest.digest[:DIGITS])

    def move_studies(self) -> int:
        """tune/<member>/ -> tune/<member>/<digest>/"""
        moved = 0
        for path in (self.work / "tune").glob("*/best.json"):
            manifest = read_manifest(path.with_name("manifest.json"))
            if manifest is None:
                continue
            if "code" not in manifest.depends:
                subject = self._subject(manifest.depends)
                if subject is None:
                    continue
                depends = {**manifest.depends, **subject, "metric": self.metric, "code": code_digest()}
                finished = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat()
                _rewrite(path.with_name("manifest.json"), manifest, depends, {"finished": finished})
            path.parent.rename(path.parent.with_name(f"{path.parent.name}{MOVING}"))
        for moving in (self.work / "tune").glob(f"*{MOVING}"):
            if manifest := read_manifest(moving / "manifest.json"):
                target = moving.with_name(moving.name.removesuffix(MOVING)) / manifest.digest[:DIGITS]
                target.parent.mkdir(exist_ok=True)
                moving.rename(target)
                moved += 1
        return moved

    def move_blend(self) -> int:
        """blend/ -> blend/<digest>/"""
        blend, moving = self.work / "blend", self.work / f"blend{MOVING}"
        if read_manifest(blend / "manifest.json") is not None:
            blend.rename(moving)
        if not moving.exists() or (manifest := read_manifest(moving / "manifest.json")) is None:
            return 0
        target = blend / manifest.digest[:DIGITS]
        blend.mkdir(exist_ok=True)
        moving.rename(target)
        set_newest_blend(target)
        return 1

    def forget_metric_of_raw_files(self) -> None:
        """Raw files depended on the metric; without this the next `make download` would fetch them again."""
        path = self.work / "raw.json"
        manifest = read_manifest(path)
        if manifest is not None and manifest.depends.get("competition", {}).get("metric"):
            competition = {**manifest.depends["competition"], "metric": ""}
            _rewrite(path, manifest, {**manifest.depends, "competition": competition})


def _rewrite(path: Path, manifest: Manifest, depends: Mapping[str, Any], result: Mapping[str, Any] = {}) -> None:
    """Write the manifest with other dependencies and additional results, if that changes it."""
    changed = replace(
        manifest, digest=digest_of(depends), depends=to_plain(depends), result={**manifest.result, **result}
    )
    if changed != manifest:
        write_json(path, changed)
