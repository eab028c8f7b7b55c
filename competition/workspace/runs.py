"""Runs: the trained versions of a member, and what uses them: the current parameters, and the submissions in the ledger.

A run is stored under the digest of everything that its fold models depend on except the fold, so that other parameters, data,
plugins or another version of the training start another run and never replace this one. The version (training/versions.py)
is raised by hand when results change.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.config.params import REMOVED, Member, Params, Train
from competition.files.manifest import changed_keys, read_manifest, read_record, write_json
from competition.submission import ledger
from competition.training.versions import TRAINING
from competition.workspace.studies import DIGITS, study_subject, tuned_member
from competition.workspace.workspace import Workspace

RUN_FILE = "run.json"
RUN_FOLDER = re.compile(rf"[0-9a-f]{{{DIGITS}}}")
OF_A_FOLD = ("fold", "teacher_weights")  # keys of a fold model's dependencies that its run does not have
KEYS_OF_TRAIN = Train.__dataclass_fields__.keys()


@dataclass(frozen=True)
class Run:
    """One trained version of a member, trained or to be trained."""

    name: str  # of the member
    member: Member  # with tuned values and the seed of this run
    depends: Mapping[str, Any]  # what its fold models depend on, except the fold
    digest: str  # of `depends`
    folder: Path  # work/<competition>/members/<member>/<first digits of the digest>
    teachers: Mapping[str, tuple["Run", ...]]  # teacher -> its runs
    title: str  # for messages: the member, with the seed if there are several
    created: str = ""  # of a stored run: when it was begun, UTC, ISO 8601; "" if that is unknown

    @property
    def label(self) -> str:
        """Name in blend.members, RUN= and messages, e.g. cnn@1a2b3c4d."""
        return f"{self.name}@{self.digest[:8]}"


def run_with(workspace: Workspace, name: str, member: Member, seed: int = 0) -> Run:
    """The run of `member`, whose tuned values are applied already, with the current data, plugins and version of the training.

    seed: added to train.seed; 0 = the first of the member's seeds.
    """
    several = member.seeds > 1
    train = replace(member.train, seed=member.train.seed + seed)
    member = replace(member, train=train, seeds=1)
    teachers = {teacher: tuple(runs_of(workspace, teacher)) for teacher in member.teacher}
    folds = {fold for runs in teachers.values() for run in runs for fold in run.depends["tuned_folds"]}
    depends = {
        **study_subject(workspace.prepared, workspace.params, member),
        "teachers": {teacher: [run.digest for run in runs] for teacher, runs in teachers.items()},
        "tuned_folds": sorted({*member.tuned_folds, *folds}),
        "training_version": TRAINING,
    }
    if member.train.patience:  # the metric chooses the epoch
        depends["metric"] = metric = workspace.prepared.competition.metric
        depends["metric_code"] = workspace.params.plugins.digests("METRICS", [metric])
    digest = digest_of(depends)
    folder = workspace.folder / "members" / name / digest[:DIGITS]
    title = f"{name} seed {train.seed}" if several else name
    return Run(name, member, depends, digest, folder, teachers, title)


def runs_of(workspace: Workspace, name: str) -> list[Run]:
    """The runs of a member with the current parameters, one for each of its seeds."""
    member = tuned_member(workspace, name)
    return [run_with(workspace, name, member, seed) for seed in range(member.seeds)]


def blended_runs(workspace: Workspace) -> dict[str, list[Run]]:
    """Member of the blend -> its runs. A member cnn has one run for each seed; cnn@1a2b3c4d is a stored run.

    Members with external predictions are not included, nor is a stored run that is the run of a member in the blend.
    """
    params = workspace.params
    names = params.blend.members or tuple(params.members)
    runs = {name: runs_of(workspace, name) for name in names if name in params.members}
    current = {run.digest for members in runs.values() for run in members}
    stored = {name: find_run(workspace.folder, name) for name in names if "@" in name}
    runs |= {name: [run] for name, run in stored.items() if run.digest not in current}
    return {name: runs[name] for name in names if name in runs}


def blended_external(params: Params) -> list[str]:
    """Names of the members with external predictions that take part in the blend."""
    return [name for name in params.external if not params.blend.members or name in params.blend.members]


def write_run_file(run: Run) -> None:
    """Describe the run in its folder, once."""
    if not (run.folder / RUN_FILE).is_file():
        content = {"member": run.name, "digest": run.digest, "depends": run.depends}
        content["created"] = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(run.folder / RUN_FILE, content)


def stored_runs(work: Path, name: str = "") -> list[Run]:
    """All runs on disk, or those of one member, the oldest first. A run without a description is left out."""
    folders = (work / "members").glob(f"{name or '*'}/*")
    runs = [_stored(folder) for folder in folders if RUN_FOLDER.fullmatch(folder.name) and folder.is_dir()]
    return sorted((run for run in runs if run is not None), key=lambda run: (run.created, run.folder))


def find_run(work: Path, label: str) -> Run:
    """The stored run called MEMBER@DIGITS. Raises UserError if there is none, or several."""
    name, _, digits = label.partition("@")
    runs = [run for run in stored_runs(work, name) if name and digits and run.digest.startswith(digits)]
    if len(runs) != 1:
        existing = ", ".join(run.label for run in stored_runs(work)) or "none"
        raise UserError(
            f"{label}: {len(runs)} runs were found, expected one; a run is named MEMBER@DIGITS, e.g. cnn@1a2b3c4d; "
            f"stored runs: {existing}"
        )
    return runs[0]


def _stored(folder: Path) -> Run | None:
    """The run in a folder, by its run.json; by the manifest of a fold model if that file is missing, because the fold models
    came from a bucket or a kernel, or damaged; None without either.
    """
    content: dict[str, Any] = read_record(folder / RUN_FILE, dict) or {}
    is_described = digest_of(content.get("depends")).startswith(folder.name)
    depends: dict[str, Any] = content["depends"] if is_described else {}
    for path in sorted(folder.glob("fold*/manifest.json")):
        if not depends and (manifest := read_manifest(path)):
            of_run = {key: value for key, value in manifest.depends.items() if key not in OF_A_FOLD}
            depends = of_run if digest_of(of_run).startswith(folder.name) and "member" in of_run else {}
    if not depends:
        return None
    stated, digest, name = depends["member"], digest_of(depends), folder.parent.name
    # A removed parameter had its effect on the weights; they are used without it.
    train = {
        key: value for key, value in stated["train"].items() if key in KEYS_OF_TRAIN or key not in REMOVED["train"]
    }
    try:
        member = _member_adapter().validate_python({**stated, "train": train})
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(
            f"{folder}: its parameters are of another version ({'.'.join(map(str, problem['loc']))}: {problem['msg']}); "
            "remove this folder"
        ) from None
    members, teachers = folder.parents[1], {}
    for teacher, digests in depends.get("teachers", {}).items():
        runs = [_stored(members / teacher / each[:DIGITS]) for each in digests]
        teachers[teacher] = tuple(run for run in runs if run is not None)
    created = str(content.get("created", "")) if is_described else ""
    return Run(name, member, depends, digest, folder, teachers, f"{name}@{digest[:8]}", created)


@cache
def _member_adapter() -> TypeAdapter[Member]:
    """Built once: this takes longer than everything else that is done for a stored run."""
    return TypeAdapter(Member)


def runs_in_use(workspace: Workspace) -> dict[str, Run]:
    """Label -> run of the members of these parameters, of their blend, and of all teachers.

    Members with equal parameters have runs with equal digests, so a label is what names a run.
    """
    runs = [run for name in workspace.params.members for run in runs_of(workspace, name)]
    runs += [run for members in blended_runs(workspace).values() for run in members]
    return {run.label: run for run in with_teachers(runs)}


def with_teachers(runs: Sequence[Run]) -> list[Run]:
    """The runs and, after them, their direct and indirect teachers."""
    teachers = [teacher for run in runs for group in run.teachers.values() for teacher in group]
    return [*runs, *with_teachers(teachers)] if teachers else list(runs)


def submissions_by_run(
    workspace: Workspace, submissions: Path, runs: Sequence[Run]
) -> dict[str, list[ledger.SubmissionState]]:
    """Label of a run -> the ledger's rows of the submissions that mix it, in any of the blends that gave them."""
    competition, stored = workspace.params.competition, ledger.read(submissions / "ledger.jsonl")
    rows = ledger.submission_states(ledger.of_competition(stored, competition.name, competition.slug))
    mixed: dict[str, set[str]] = {}  # digest of a submission -> labels of runs
    for entry in stored.entries:
        mixed.setdefault(entry.digest, set()).update(entry.runs)
    return {run.label: [row for row in rows if run.label in mixed[row.entry.digest]] for run in runs}


def honest_scores(work: Path, metric: str, current: Path | None) -> dict[str, Mapping[str, float]]:
    """Digest of a run -> score and standard error on rows that chose nothing, from the current blend, else from the newest
    one with only this run of the member under this metric.
    """
    scores: dict[str, Mapping[str, float]] = {}
    blends = sorted((work / "blend").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    for path in sorted(blends, key=lambda path: path.parent == current):  # stable: the newest of the others last
        manifest = read_manifest(path)
        if manifest is None or manifest.result.get("metric") != metric:
            continue
        for name, runs in manifest.depends.get("predictions", {}).items():
            if len(runs) == 1 and name in manifest.result.get("members", {}):
                scores[next(iter(runs))] = manifest.result["members"][name]
    return scores


def changes_between(before: Run, after: Run) -> list[str]:
    """ "key: old value -> new value" for each difference of what two runs depend on."""
    # The folds that chose hyperparameters of the member are among those that the run names.
    keys = changed_keys(before.depends, after.depends)
    return [change for change in keys if not change.startswith("member.tuned_folds:")]


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
