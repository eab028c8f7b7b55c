"""Train one fold model: checkpoints while it runs, its weights, history and out-of-fold predictions at the end."""

import csv
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from competition.config.digests import digest_of
from competition.config.errors import UserError
from competition.config.faults import fault_point
from competition.config.params import ExcludedFolds
from competition.config.plugins import active
from competition.files.manifest import Manifest, atomic_write, files_intact, read_manifest
from competition.files.replacement import again_path, replace_model
from competition.workspace.dependencies import fold_model_dependencies, model_path
from competition.workspace.runs import Run
from pipelines.terminal import hosts
from pipelines.terminal.output import display_path
from pipelines.terminal.runner import Computed, Job

if TYPE_CHECKING:
    from competition.training.input_stall import InputStallDetector
    from competition.training.loop import Epoch, Trained
    from competition.training.trainer import Trainer

STOPPING = b"\ngoldfold: stopping at the next checkpoint; Ctrl-C or SIGTERM once more stops at once\n"


def describe_fold(fold: ExcludedFolds) -> str:
    return f"fold {fold}" if isinstance(fold, int) else f"without folds {fold[0]} and {fold[1]}"


def train_model(
    job: Job,
    trainer: "Trainer",
    run: Run,
    fold: ExcludedFolds,
    progress: Callable[[int, int, str], None],
    stall_detector: "InputStallDetector",
    saved: Callable[[Path], None] = lambda _: None,
) -> Manifest:
    """Train one model of a run. A complete earlier model stays in its place until the new one is complete.

    saved: see train_fold.
    """
    target, depends, title = model_path(run, fold), fold_model_dependencies(run, fold), f"train {run.title}"
    previous = read_manifest(target)
    trained_before = previous is not None and files_intact(target, previous)
    path = again_path(run.folder, target) if trained_before else target
    if trained_before and job.options.force:
        job.echo(f"{title} {describe_fold(fold)}: made again (FORCE=1)")
    make = partial(train_fold, job, trainer, run, fold, path.parent, progress, stall_detector, saved)
    manifest = job.cached(f"{title} {describe_fold(fold)}", path, depends, make)
    if hosts.writes():
        remove_checkpoints(path.parent)  # after the manifest: a kill before it costs no steps
        if trained_before:
            replace_model(run.folder, target)
    hosts.wait_for_all()
    return manifest


def result_line(metric: str, manifest: Manifest) -> str:
    """The result of one fold model for the terminal."""
    result = manifest.result
    line = f"{metric} {result['held_out']:.4f} on its held-out rows, {result['seconds']:.0f} s"
    if "inner" in result:
        line += (
            f"; epoch {result['epoch']} of {result['epochs']} has the best score on its inner validation part "
            f"({result['inner']:.4f}): its weights predict these rows and the test rows"
        )
    return line


def train_fold(
    job: Job,
    trainer: "Trainer",
    run: Run,
    fold: ExcludedFolds,
    folder: Path,
    progress: Callable[[int, int, str], None],
    stall_detector: "InputStallDetector",
    saved: Callable[[Path], None],
) -> Computed:
    """Train one model and write weights.npz, history.csv and oof.npz to `folder`; its checkpoints stay there.

    Only checkpoints of a model that depends on the same are continued.
    saved: called with the folder of the checkpoints after each epoch, and after a stop.
    """
    from competition.training.checkpoint import Checkpoints, save_arrays
    from competition.training.loop import Diverged, Stopped

    train, made_from = run.member.train, digest_of(fold_model_dependencies(run, fold))

    def report_damage(name: str) -> None:
        job.echo(
            f"train: checkpoint {name} in {display_path(folder)} is damaged and not used; an earlier one is, if it is intact"
        )

    checkpoints = Checkpoints(
        folder / "checkpoints", made_from, 60 * job.params.device.checkpoint_minutes, report_damage, hosts.writes()
    )
    received: list[int] = []
    try:
        with stop_signals(received):
            stop = lambda: bool(received)  # noqa: E731
            # The score of a nested teacher is not shown.
            watch = job.params.device.score_epochs and isinstance(fold, int)

            def on_epoch(epoch: "Epoch") -> None:
                saved(folder / "checkpoints")
                if hosts.number() == 0:
                    call_callbacks({"member": trainer.name, "fold": fold, "epochs": train.epochs, **asdict(epoch)})

            trained = trainer.train(fold, train, checkpoints, progress, stop, watch, stall_detector, on_epoch)
    except Stopped as stopped:
        saved(folder / "checkpoints")
        job.echo(f"train: {stopped}, its checkpoint is on disk; the same command resumes from it")
        # 130 after Ctrl-C, 143 after SIGTERM. With several hosts, those stop as well that did not receive the signal.
        raise SystemExit(128 + (received or [signal.SIGTERM])[0]) from None
    except Diverged as error:
        raise UserError(f"{display_path(folder)}: {error}") from None
    files = [folder / name for name in ("weights.npz", "history.csv", "oof.npz")]
    fault_point("fold.before_weights", files[0])
    save_arrays(files[0], trainer.engine.weights())
    write_history(files[1], trained)
    fault_point("fold.before_predictions", files[2])
    trainer.out_of_fold(fold, trained).save(files[2])
    selected, last = trained.selected, trained.history[-1]
    inner = {"inner": selected.inner} if train.patience else {}
    held_out = trainer.selected_score(fold, trained)
    scored = {"held_out": held_out, "metric": trainer.metric.name}
    return files, {**scored, "epoch": selected.epoch, "epochs": last.epoch, "loss": last.loss, **inner}


def call_callbacks(values: Mapping[str, Any]) -> None:
    """Call the user's CALLBACKS with the values of an epoch."""
    plugins = active()
    for name, callback in plugins.callbacks.items():
        plugins.call(f"CALLBACKS[{name!r}]", callback, dict(values))


@contextmanager
def stop_signals(received: list[int]) -> Iterator[None]:
    """Append the first SIGINT or SIGTERM inside the block to `received`; the process goes on. The second one ends it at once."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A shell starts background jobs with SIGINT ignored: it stays ignored.
    handled = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]

    def restore() -> None:
        for number in handled:
            signal.signal(number, previous[number])

    def first(number: int, _: Any) -> None:
        received.append(number)
        restore()
        os.write(2, STOPPING)  # print() may be interrupted by this very handler and is not reentrant

    for number in handled:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()


def write_history(path: Path, trained: "Trained") -> None:
    """One CSV row per epoch."""
    from competition.training.loop import Epoch

    with atomic_write(path) as temporary, temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Epoch)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(epoch) for epoch in trained.history)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished model; a process killed after it wrote the manifest left them."""
    from competition.training.checkpoint import Checkpoints

    Checkpoints(folder / "checkpoints", "").clear()
