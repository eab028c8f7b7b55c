"""Import the results of a kernel: follow it to its end, download its output, and copy it into the local results."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from competition.budget.parameters import file_text, imported
from competition.config.errors import UserError
from competition.config.params_file import BUDGET_FILE
from competition.files.manifest import copy_file, sha256, write_json, write_text
from competition.kaggle import submit
from competition.kaggle.client import Client
from competition.kernels import api as kernels
from competition.kernels import request as kernel_request
from competition.kernels import results as kernel_results
from competition.kernels.push import PushIntent
from competition.submission import ledger
from competition.workspace.dependencies import fold_manifest_path, fold_model
from competition.workspace.runs import Run, runs_of
from competition.workspace.workspace import Workspace

# Files in the kernel's output beside the archives, see `copy_out` of the plan (pipelines/kaggle/kernel.py).
SUBMISSION, LEDGER, BUDGET = "submission.csv", "goldfold-ledger.jsonl", "goldfold-budget.yaml"
HOUR = 3600


class KernelFailed(UserError):
    """The kernel ended with an error; the results that it had finished were imported."""


@dataclass(frozen=True)
class ImportTarget:
    """Local results into which a kernel's output is imported."""

    workspace: Workspace
    submissions: Path
    say: Callable[..., None]  # say(*lines)
    params_file: Path = Path("params.yaml")  # that a budget's parameter file extends


def import_output(target: ImportTarget, client: Client, intent: PushIntent) -> None:
    """Follow the kernel to its end, download its output and import it. Finished results are kept after a failure.

    UserError if it has not ended an hour after its time limit; KernelFailed, after the import, if it failed.
    """
    workspace, settings = target.workspace, target.workspace.params.kernel
    on_log = lambda text: target.say(*(f"kernel | {line}" for line in text.splitlines()))  # noqa: E731
    outcome = kernels.follow(client, intent, on_log, (settings.hours + 1) * HOUR, settings.pause)
    if outcome.status not in kernels.ENDED:
        raise UserError(f"the kernel has not ended ({outcome.status}); run the same command to wait, see {intent.url}")
    target.say(f"kernel: {outcome.status}" + (f": {outcome.message}" if outcome.message else ""))
    output = kernel_results.pull(client, intent, intent.run, workspace.folder / "kernel" / "output")
    # `merge` never replaces a complete result: one that is to be replaced loses its manifest first.
    for result_folder in (packed.result_folder for packed in output.archives):
        if model_of_folder := fold_model_of_folder(target, result_folder):
            run, fold = model_of_folder
            is_of_run = f"/{run.folder.name}/" in f"/{result_folder}"
            if is_of_run and ((intent.force and output.status == "done") or not fold_model(run, fold).is_current):
                fold_manifest_path(run, fold).unlink(missing_ok=True)
    root = workspace.folder.parent.resolve().parent
    merged = kernel_results.merge(output, root, intent.collect)
    on = f" on {output.devices}" if output.devices else ""
    target.say(f"kernel: {output.status} after {output.seconds / 60:.0f} min{on}")
    for action, result_folders in merged.items():
        if result_folders:
            target.say(f"kernel: {action}: {', '.join('/'.join(Path(name).parts[-2:]) for name in result_folders)}")
    if (output.folder / BUDGET).exists():
        # The file that a budget wrote in the kernel becomes one that extends the file of this machine.
        path = workspace.folder / BUDGET_FILE
        base = Path(os.path.relpath(target.params_file.resolve(), path.parent.resolve()))
        made = imported(output.folder / BUDGET, workspace.params)
        head = ["Made by `make kernel HOURS=...`. `make train predict` with this file repeats the result."]
        write_text(path, file_text(made, base, workspace.overrides, {}, head))
        target.say(f"kernel: the budget made {', '.join(made.members)}; their parameter file is {path}")
    if output.status == "done" and (output.folder / SUBMISSION).exists():
        import_submission(target, intent, output.folder)
    if output.status == "failed":
        raise KernelFailed(f"the kernel failed: {output.problem}; its finished results were imported; see {intent.url}")
    if output.status == "cut":
        target.say("kernel: stopped at its time limit; `make kernel` resumes it")


def fold_model_of_folder(target: ImportTarget, result_folder: str) -> tuple[Run, int] | None:
    """Run and fold of the fold model in a result folder; None if it holds something else.

    The run is the one in whose folder it lies if the current parameters have it, else the member's first.
    """
    match = re.search(r"/members/([^/]+)/([0-9a-f]+)/fold(\d+)$", f"/{result_folder}")
    if match is None or match[1] not in target.workspace.params.members:
        return None
    runs = runs_of(target.workspace, match[1])
    run = next((run for run in runs if run.folder.name == match[2]), runs[0])
    return run, int(match[3])


def import_submission(target: ImportTarget, pushed: kernels.KernelVersion, folder: Path) -> None:
    """Import the kernel's submission into submissions/ and its ledger, and record its version for `make submit`."""
    digest = sha256(folder / SUBMISSION)
    entries = [entry for entry in ledger.read(folder / LEDGER).entries if entry.digest == digest]
    if not entries:
        raise UserError(
            f"{SUBMISSION} of {pushed.url} is not in its ledger; `make kernel` fetches it again; if that fails, "
            "`make kernel AGAIN=1` makes another one, without training again"
        )
    file = target.submissions / f"{digest[:12]}.csv"
    copy_file(folder / SUBMISSION, file)
    ledger.append(target.submissions / "ledger.jsonl", replace(entries[-1], file=file.name))
    name = f"{pushed.owner}/{pushed.slug}"
    runs = {n: runs_of(target.workspace, n) for n in target.workspace.params.members}
    request_digest = kernel_request.submission_request_digest(runs, target.workspace.params)
    output = submit.KernelSubmission(name, pushed.version, SUBMISSION, digest, request_digest)
    write_json(target.workspace.folder / "kernel" / "submission.json", output)
    target.say(f"submission: {file.name}, made by version {pushed.version} of {name}; `make submit` submits it")
