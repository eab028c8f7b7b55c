"""What a kernel made, brought home: followed, fetched, and put where it would be had it been made here."""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from competition.artifacts.dependencies import fold_model_dependencies, member_with_tuned_values, model_manifest
from competition.artifacts.manifest import atomic_write, changed_keys, read_manifest, sha256, write_json
from competition.config.errors import UserError
from competition.config.params import ExcludedFolds, Member, Params
from competition.config.params_file import Override
from competition.data.prepared import Prepared
from competition.kaggle import submit
from competition.kaggle.client import Client
from competition.kernels import api as kernels
from competition.kernels import request as kernel_work
from competition.kernels import results as kernel_results
from competition.kernels.push import PushIntent
from competition.submission import ledger

SUBMISSION, LEDGER = "submission.csv", "goldfold-ledger.jsonl"  # what they are called among the outputs
HOUR = 3600


class Failed(UserError):
    """The kernel ended with an error; what it had finished is here all the same."""


@dataclass(frozen=True)
class ImportTarget:
    """Where results belong, and what is wanted there."""

    work: Path  # work/<competition>
    submissions: Path
    params: Params
    overrides: Sequence[Override]
    prepared: Prepared
    say: Callable[[str], None]


def import_output(home: ImportTarget, client: Client, under_way: PushIntent) -> None:
    """Follow to the end, fetch what it left, put it where it belongs. Whatever was finished there is kept."""
    pushed = under_way.pushed
    follow(home, client, pushed)
    output = kernel_results.pull(client, pushed, under_way.run, home.work / "kernel" / "output")
    for unit in output.units:
        remove_replaced_model(home, unit, under_way.force and output.status == "done")
    root = home.work.parent.resolve().parent
    merged = kernel_results.merge(output, root, under_way.collect, home.params.kaggle.unpack_ratio)
    on = f" on {output.devices}" if output.devices else ""
    home.say(f"kernel: {output.status} after {output.seconds / 60:.0f} min{on}")
    report_merged(home, merged)
    if output.status == "done" and (output.folder / SUBMISSION).exists():
        import_submission(home, pushed, output.folder)
    if output.status == "failed":
        raise Failed(f"the kernel failed: {output.problem}; what it finished is here, its log says more: {pushed.url}")
    if output.status == "cut":
        home.say("kernel: its time was over; `make kernel` again goes on where it stopped")


def follow(home: ImportTarget, client: Client, pushed: kernels.KernelVersion) -> None:
    """Pass on its log until it ends; UserError when it has not ended an hour after it should."""

    def on_log(text: str) -> None:
        for line in text.splitlines():
            home.say(f"kernel | {line}")

    how = home.params.kernel
    ended = kernels.follow(client, pushed, on_log, (how.hours + 1) * HOUR, how.pause)
    if ended.status not in kernels.ENDED:
        raise UserError(
            f"the kernel has not ended ({ended.status}); the same command goes on waiting, see {pushed.url}"
        )
    home.say(f"kernel: {ended.status}" + (f": {ended.message}" if ended.message else ""))


def remove_replaced_model(home: ImportTarget, unit: str, force: bool) -> None:
    """A fold model that is here, but not as params want it (or `force`), gives way to the one that comes."""
    if found := fold_model_of_unit(home, unit):
        name, member, fold = found
        if force or kernel_work.stale_folds(home.work, home.params, home.prepared, name, member, [fold]):
            model_manifest(home.work, name, fold).unlink(missing_ok=True)


def report_merged(home: ImportTarget, merged: kernel_results.Merged) -> None:
    for what, units in (("new here", merged.taken), ("unfinished", merged.partial), ("here before", merged.kept)):
        if units:
            home.say(f"kernel: {what}: {', '.join('/'.join(Path(unit).parts[-2:]) for unit in units)}")
    for unit in merged.taken:
        if found := fold_model_of_unit(home, unit):
            name, member, fold = found
            made = read_manifest(model_manifest(home.work, name, fold))
            wanted = fold_model_dependencies(home.work, home.prepared, home.params, member, fold)
            if made and (changes := changed_keys(made.depends, wanted)):
                home.say(f"kernel: WARNING {name} fold {fold} is not what is wanted here ({'; '.join(changes[:3])})")


def fold_model_of_unit(home: ImportTarget, unit: str) -> tuple[str, Member, ExcludedFolds] | None:
    """Which fold model (or nested teacher) a result folder is, if it is one: the member as it is trained here, and what
    it leaves out.
    """
    match = re.search(r"/([^/]+)/(?:fold(\d+)|without/(\d+)-(\d+))$", f"/{unit}")
    if match is None or match[1] not in home.params.members:
        return None
    member, _ = member_with_tuned_values(home.work, home.params, match[1], home.overrides)
    return match[1], member, int(match[2]) if match[2] else (int(match[3]), int(match[4]))


def import_submission(home: ImportTarget, pushed: kernels.KernelVersion, folder: Path) -> None:
    """The submission that the kernel left is one of ours now, and noted as the one that Kaggle can be pointed to."""
    digest = sha256(folder / SUBMISSION)
    entries = [entry for entry in ledger.read(folder / LEDGER).entries if entry.digest == digest]
    if not entries:
        raise UserError(
            f"{SUBMISSION} of {pushed.url} is not what its ledger says; `make kernel` fetches it again, if it stays so "
            "`make kernel AGAIN=1` has another one made, without training again"
        )
    file = home.submissions / f"{digest[:12]}.csv"
    with atomic_write(file) as temporary:
        shutil.copyfile(folder / SUBMISSION, temporary)
    ledger.append(home.submissions / "ledger.jsonl", replace(entries[-1], file=file.name))
    name, asked = f"{pushed.owner}/{pushed.slug}", kernel_work.submission_request_digest(home.work, home.params)
    made = submit.Made(name, pushed.version, SUBMISSION, digest, asked)
    write_json(home.work / "kernel" / "submission.json", made)
    home.say(f"submission: {file.name}, made by version {pushed.version} of {name}; `make submit` hands it in")
