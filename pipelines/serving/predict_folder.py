"""Predict a folder of new images by the blend, or by one member, into a CSV file; no export and no server is needed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd

from competition.config.errors import UserError, counted, similar_name_beside
from competition.config.redaction import printable
from competition.ensemble.bootstrap import Evaluation, score_with_error
from competition.ensemble.stored_predictions import free_name
from competition.ensemble.target_metrics import UndefinedScore
from competition.files.image_codec import SUFFIXES
from competition.files.manifest import atomic_write
from competition.prepare.adapter_types import Competition
from competition.prepare.adapters.image_paths import image_paths, unread_files_notes
from competition.report.caveats import accuracy
from competition.report.terminal import with_error
from competition.serving.new_images import NewImagePredictor, read_readable_images
from competition.serving.served_models import select
from competition.submission.submission_csv import FORMULA
from pipelines.execution.open_trainer import start_device
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar

CHUNK = 256  # images that are in memory at once, encoded and at the size of every member
SHOWN = 10  # unreadable images that are named in the terminal; the file names all
HEADER_CHARACTERS = 10**6  # of the first line of a file of 100,000 classes


def run(job: Job) -> None:
    """FOLDER/**/*.jpg, .png, ... -> OUT: id, label, one probability per class, problem; a line for every image"""
    folder, out = (Path(os.path.expanduser(name)) for name in (job.options.folder, job.options.out))
    if not job.options.folder:
        raise UserError("FOLDER= is not given; state a folder of images: make predict-folder FOLDER=new_photos")
    if not folder.is_dir():
        problem, similar = "is a file" if folder.exists() else "does not exist", similar_name_beside(folder)
        raise UserError(f"FOLDER={job.options.folder} {problem}; expected a folder of images{similar}")
    require_writable(out)
    names = image_paths(folder)
    job.echo(*(f"predict-folder: {note}" for note in unread_files_notes(folder)))
    if not names:
        raise UserError(f"FOLDER={job.options.folder}: no image was found in it or in its folders")
    predictor = NewImagePredictor(job.workspace, partial(start_device, job))
    select(job.workspace, job.options.member)  # raises UserError before an image is read
    competition, problems = job.prepared.competition, dict[str, str]()  # name -> why it cannot be read
    nothing = np.zeros((0, len(competition.classes)), np.float32)
    # The first part has the columns though no image can be read.
    parts = [prediction_table(competition, [], nothing, nothing.argmax(1))]
    predictions: list[tuple[np.ndarray, np.ndarray]] = []
    with Bar(len(names), "predict-folder", "images") as bar:
        for start in range(0, len(names), CHUNK):
            name_of = {str(folder / name): name for name in names[start : start + CHUNK]}
            encoded, unreadable = read_readable_images([Path(path) for path in name_of])
            problems |= {name_of[path]: reason for path, reason in unreadable.items()}
            if encoded.names:
                probs, decided = predictor.predict(encoded, job.options.member)
                parts.append(prediction_table(competition, [name_of[path] for path in encoded.names], probs, decided))
                predictions.append((probs, decided))
            bar.update(len(name_of))
    write_predictions(pd.concat(parts).reindex(names), problems, competition, out)
    what = f"member {job.options.member}" if job.options.member else "the blend"
    job.echo(f"predict-folder: {counted(len(names) - len(problems), 'image')} by {what} in {display_path(out)}")
    if predictions:
        probs, decided = (np.concatenate(arrays) for arrays in zip(*predictions, strict=True))
        readable = [name for name in names if name not in problems]
        job.echo(*(f"predict-folder: {line}" for line in score_lines(job, readable, probs, decided)))
    if problems:
        job.echo(f"predict-folder: no prediction for {counted(len(problems), 'image')} that could not be read")
        lines = [f"  {printable(name)}: {reason}" for name, reason in list(problems.items())[:SHOWN]]
        rest = [f"  and {len(problems) - SHOWN:,} more, in the column problem"] if len(problems) > SHOWN else []
        job.echo(*lines, *rest)


def score_lines(job: Job, names: Sequence[str], probs: np.ndarray, decided: np.ndarray) -> Iterator[str]:
    """The scores of the predictions, if the folder of every image is named as a class.

    names: of the images.  probs: (N, C).  decided: (N,) int, by the decision rule.
    """
    competition = job.prepared.competition
    number = {name.replace("_", " ").casefold(): n for n, name in enumerate(competition.classes)}
    folders = [PurePosixPath(name).parent.name.replace("_", " ").casefold() for name in names]
    if competition.targets.kind != "single" or not number.keys() >= {*folders}:
        return
    labels = np.array([number[folder] for folder in folders])
    share = accuracy(labels, decided, np.arange(len(labels)))
    text = f"accuracy {with_error(share['value'], share['error'], 'accuracy')}"
    metric, settings = job.prepared.metric, job.params.honest
    if metric.name != "accuracy":
        output = decided if metric.needs_labels else probs
        with suppress(UndefinedScore):  # on these classes alone
            evaluation = Evaluation(metric, len(competition.classes), settings.resamples, settings.seed)
            score = score_with_error(labels, output, evaluation)
            text += f", {metric.name} {with_error(metric.display(score.value), score.error, metric.name)}"
    yield f"{text} with the names of the folders as classes: honest, if no model has learned from these images"


def require_writable(out: Path) -> None:
    """Raise UserError unless `out` can become the CSV file: a new one, or one that predict-folder has written."""
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise UserError(f"OUT={out}: the folder {out.parent} does not exist or cannot be written; choose another one")
    if out.suffix.lower() in SUFFIXES:
        raise UserError(f"OUT={out}: expected a CSV file, this is the name of an image; OUT=predictions.csv")
    if not os.path.lexists(out):
        return
    if not out.is_file() or out.is_symlink():  # a device would be replaced by a file
        raise UserError(f"OUT={out}: expected the name of a file, not a folder, a link, a device or a pipe")
    with out.open(encoding="utf-8", errors="replace") as file:
        columns = file.readline(HEADER_CHARACTERS).rstrip("\n").split(",")
    if not (columns[0] in ("id", "row_id") and columns[-1] in ("problem", "row_problem")):
        raise UserError(f"OUT={out}: this file was not written by predict-folder; choose another name, or remove it")


def prediction_table(
    competition: Competition, names: list[str], probs: np.ndarray, decided: np.ndarray
) -> pd.DataFrame:
    """label (not of a regression), then one column per class, by the name of the image."""
    values = pd.DataFrame(probs, index=names, columns=list(competition.classes))
    if competition.target != "regression":
        values.insert(0, free_name("label", competition.classes), competition.as_table_values(decided))
    return values


def write_predictions(table: pd.DataFrame, problems: Mapping[str, str], competition: Competition, out: Path) -> None:
    """Write the table, whose index has the names of the images, with the problems as its last column, as UTF-8."""
    names = [str(name) for name in table.index]
    table = table.assign(**{free_name("problem", competition.classes): [problems.get(name, "") for name in names]})
    # "./=1.jpg" is the same path, and no formula.
    table.index = pd.Index([f"./{name}" if name.startswith(FORMULA) else name for name in names])
    with atomic_write(out) as temporary:
        table.to_csv(
            temporary,
            index_label=free_name("id", competition.classes),
            lineterminator="\n",
            errors="backslashreplace",  # a name that is not UTF-8
        )
