"""What the command line selects: members, folds and submissions."""

from pathlib import Path

from competition.config.errors import UserError
from competition.files.manifest import Manifest, read_manifest
from competition.prepare.adapter_types import SOLUTION
from competition.report.terminal import with_error
from competition.submission import ledger
from competition.submission.grading import WITHOUT_SOLUTION
from competition.workspace.current_blend import current_blend, differences
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path


def selected_members(job: Job) -> list[str]:
    """The members that are trained here, or the one of MEMBER=. Raises UserError if that is none of them."""
    names, selected = list(job.params.members), job.options.member
    if selected in job.params.external:
        own = f"the members trained here are {', '.join(names)}" if names else "no member is trained here"
        where = "it was trained elsewhere, so it can be neither trained nor exported here"
        raise UserError(f"MEMBER={selected}: {where}; {own}")
    if selected and selected not in names:
        known = ", ".join([*names, *job.params.external])
        one = "expected one member" if "," in selected else "no such member"
        raise UserError(f"MEMBER={selected}: {one}; the members are {known}")
    return [selected] if selected else names


def networks_to_train(job: Job, verb: str) -> list[str]:
    """The selected members whose networks are trained. A line names the others; UserError if there are only others."""
    names = selected_members(job)
    frozen = [name for name in names if job.params.members[name].head is not None]
    if frozen:
        reason = f"{verb}: without {', '.join(frozen)}, because only a head on stored features is fitted, in seconds"
        if frozen == names:
            raise UserError(f"{reason}; `make train MEMBER={frozen[0]} FOLD=0` fits and scores one")
        job.echo(reason)
    return [name for name in names if name not in frozen]


def selected_folds(job: Job) -> list[int]:
    folds, selection = job.params.prepare.folds, job.options.fold
    if not selection:
        return list(range(folds))
    numbers = [word.strip() for word in selection.split(",")]
    if not all(word.isdecimal() and int(word) < folds for word in numbers):
        raise UserError(f"FOLD={selection}: folds are whole numbers from 0 to {folds - 1}, several separated by commas")
    return sorted({int(word) for word in numbers})


def submission_named(job: Job, name: str) -> Path:
    """Return the only file in submissions/ whose name starts with `name`."""
    files = sorted(job.submissions.glob("*.csv"))
    available = ", ".join(file.stem for file in files) or "none; every `make predict` writes one"
    if not name:
        raise UserError(f"A= and B= name two submissions by their first digits; one is missing; available: {available}")
    matches = [file for file in files if file.name.startswith(Path(name).stem)]
    if len(matches) != 1:
        raise UserError(f"{name!r} names {len(matches)} submissions, expected one; available: {available}")
    return matches[0]


def require_test_images(job: Job) -> None:
    """Raise UserError for a competition without test images, which has no submission."""
    if not len(job.prepared.part("test")):
        raise UserError(
            f"{job.params.competition.name} has no test images, so there is no submission: its result is the honest "
            "score (`make report`); to get predictions, add a folder test/ of images to competition.source and run "
            "`make download train predict`"
        )


def submission_of(job: Job, verb: str) -> ledger.Entry:
    """The ledger's entry of the blend of the current parameters, else of the one that comes closest, else the last entry.

    --file: the last entry whose file begins with this. Its file exists. Lines for the screen say what the blend
    differs in from the current parameters, and which submission is newer.
    """
    name, prefix = job.params.competition.name, Path(job.options.file).stem if job.options.file else ""
    entries = ledger.read(job.submissions / "ledger.jsonl").entries
    of_competition = [e for e in entries if e.competition == name and (job.submissions / e.file).exists()]
    existing = [e for e in of_competition if Path(e.file).stem.startswith(prefix)]
    if not existing:
        place, files = display_path(job.submissions), list(dict.fromkeys(Path(e.file).stem for e in of_competition))
        if files:
            raise UserError(f"no submission of {name} in {place} begins with {prefix}; there are {', '.join(files)}")
        raise UserError(f"no submission of {name} is in {place}; `make predict` writes one")
    folder = current_blend(job.workspace)
    blend = read_manifest(folder / "manifest.json") if folder is not None else None
    entry = ledger.entry_of_blend(existing, blend.result) if blend is not None else None
    if blend is None or entry is None:
        return existing[-1]
    if not prefix and (sentences := differences(job.workspace, job.options.params, blend).sentences):
        job.echo(" ".join([f"{verb}: {entry.file} is not of the current parameters.", *sentences]))
    newest = existing[-1]
    if not prefix and newest.digest != entry.digest:
        call = f"`make {verb} FILE={Path(newest.file).stem[:4]}`"
        job.echo(
            f"{verb}: {newest.file} ({honest_score_text(newest)}) was recorded after {entry.file}; {call} takes it"
        )
    return entry


def not_on_kaggle(job: Job) -> str:
    """What can be done with a submission of a competition that is not on Kaggle."""
    has_solution = job.path("raw", SOLUTION).exists()
    way = "`make grade` scores a submission against its private solution" if has_solution else WITHOUT_SOLUTION
    return f"{job.params.competition.name} is not on Kaggle (competition.slug is empty); {way}"


def honest_score_text(entry: ledger.Entry) -> str:
    """ "honest macro_f1 0.9507 ± 0.0077", or what is doubtful or unknown about it."""
    partial = f" (PARTIAL {entry.partial})" if entry.partial else ""
    if entry.honest_score is None:
        return f"no honest score is known{partial}"
    if entry.standard_error is None:
        score = f"{entry.honest_score:.4f}"
    else:
        score = with_error(entry.honest_score, entry.standard_error, entry.metric)
    kind = "DOUBTED" if entry.is_doubted else "optimistic" if entry.optimistic else "honest"
    return f"{kind} {entry.metric} {score}{partial}"


def blend_of_classes(job: Job, purpose: str) -> tuple[Path, Manifest]:
    """The folder and the manifest of the current blend. Raises UserError without one, or if images have not one class each.

    purpose: of the verb, for the message.
    """
    folder, competition = current_blend(job.workspace), job.prepared.competition
    blend = read_manifest(folder / "manifest.json") if folder is not None else None
    if folder is None or blend is None:
        raise UserError(
            f"{competition.name} has no blend by {display_path(job.options.params)}: this stage needs the results of `make predict`; run "
            "it first"
        )
    if competition.targets.kind != "single":
        found = f"the target of {competition.name} is {competition.target}"
        raise UserError(f"{purpose} and needs one class per image; {found}")
    return folder, blend
