"""Seconds and memory of the verbs that read results, with 20 members x 5 folds x 8 views at the size of the flowers.

    python -m benchmarks.light_verbs [--members 20] [--blended 20] [--rows 16465] [--test 7382] [--classes 104]

Writes predictions like those of `make train predict` (no network is trained), blends them, and runs each verb as a process.
--blended: so many members are drawn and blended; the files of the others are links to theirs, where a disk has no room for all.
Targets: 2 s of processor time for each light verb; 8 MB for the report.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.dress_rehearsal import measured
from competition.config.params_file import load_params
from competition.ensemble.stored_predictions import ViewPredictions
from competition.files.manifest import write_manifest
from competition.prepare.adapter_types import Competition
from competition.prepare.index import COLUMNS
from competition.workspace.dependencies import fold_manifest_path, fold_model, fold_views
from competition.workspace.runs import runs_of
from competition.workspace.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
VIEWS = ("identity", "flip_lr", "flip_ud", "rot90", "rot180", "rot270", "transpose", "anti_transpose")
FOLDS = 5
VERBS = ("blend", "runs", "submissions", "folds", "compare-submissions", "report", "report")  # the second is current
LIMIT = 2.0  # seconds of processor time, which other work on the machine changes less
PARAMS = """
extends: {root}/params.yaml
competition: {{name: large, adapter: folder}}
tune: {{trials: 0, members: []}}
members:
{members}
predict: {{views: [{views}]}}
blend: {{members: [{blended}]}}
"""


def write_data(data: Path, rows: int, test: int, classes: int) -> None:
    """data/ of a prepared competition, without images."""
    data.mkdir(parents=True)
    names = tuple(f"class {n:03}" for n in range(classes))
    values = tuple(map(str, range(classes)))
    competition = Competition("large", "", names, "macro_f1", "label", "id", ("label",), values)
    (data / "competition.json").write_bytes(competition.json_bytes())
    count = rows + test
    numbers = np.arange(count)
    is_train = numbers < rows
    index = pd.DataFrame(
        {
            "id": [f"{'i' if n < rows else 't'}{n:06}" for n in numbers],
            "label": np.where(is_train, numbers % classes, -1),
            "part": np.where(is_train, "train", "test"),
            "shard": "none",
            "place": numbers,
            "width": 512,
            "height": 512,
            "bytes": 50_000,
            "sha256": [f"{n:064x}" for n in numbers],
            "phash": [f"{n:016x}" for n in numbers],
            "problem": "",
            "group": numbers,
            "fold": np.where(is_train, numbers // classes % FOLDS, -1),
        }
    )
    index[list(COLUMNS)].to_csv(data / "index.csv", index=False)
    sample = index.loc[~is_train, ["id"]].assign(label="0")
    sample.to_csv(data / "sample_submission.csv", index=False)
    headers = {"series.csv": "series,id,label,nearest,distance", "shift.csv": "id,part,odds"}  # nothing was found
    headers |= {
        "duplicates.csv": "a,b,exact,bits,pixels",
        "conflicts.csv": "group,id,label",
        "unreadable.csv": "id,part,shard,problem",
    }
    headers |= {"leaks.csv": "kind,id,match,label,exact", "external_removed.csv": "id,label,meets"}
    for name, header in headers.items():
        (data / name).write_text(f"{header}\n")
    (data / "shift.json").write_text("{}")
    write_manifest(data / "manifest.json", {}, [data / "index.csv"], {}, {})


def write_member(workspace: Workspace, name: str, kind: int, drawn: dict[str, Path]) -> None:
    """Fold models and predictions of one member, of an accuracy of about 0.85.

    kind: those of one kind have the same predictions.  drawn: the files of predictions so far.
    """
    (run,) = runs_of(workspace, name)
    prepared, classes = workspace.prepared, len(workspace.prepared.competition.classes)
    bank, table = np.random.default_rng(kind).standard_normal((4_000, classes), np.float32), prepared.part("train")
    for fold in range(FOLDS):
        manifest = fold_manifest_path(run, fold)
        manifest.parent.mkdir(parents=True)
        manifest.with_name("weights.npz").write_bytes(f"{name} {fold}".encode())
        epochs = np.arange(1, 13)
        losses = {"loss": 4 / epochs, "held_out": 0.85 - 0.5 / epochs, "held_out_loss": 4 / epochs + 0.2}
        history = pd.DataFrame({"epoch": epochs, "learning_rate": 1e-3 / epochs, **losses})
        history.to_csv(manifest.with_name("history.csv"), index=False)
        result = {"metric": "macro_f1", "held_out": 0.85, "seconds": 100.0}
        write_manifest(manifest, fold_model(run, fold).depends, [manifest.with_name("weights.npz")], result, {})
        views = fold_views(run, workspace.params, fold).manifest
        views.parent.mkdir(parents=True, exist_ok=True)
        files = [views.with_name("oof.npz"), views.with_name("test.npz")]
        parts = (table[table["fold"] == fold], f"{kind}, fold {fold}"), (prepared.part("test"), f"{kind}, test")
        for file, (rows, content) in zip(files, parts, strict=True):
            if content in drawn:
                os.link(drawn[content], file)
            else:
                save(file, rows, bank, kind)
                drawn[content] = file
        write_manifest(views, fold_views(run, workspace.params, fold).depends, files, {}, {})


def save(path: Path, rows: pd.DataFrame, bank: np.ndarray, number: int) -> None:
    ids, labels = rows["id"].to_numpy(str), rows["label"].to_numpy()
    probs = np.empty((len(rows), len(VIEWS), bank.shape[1]), np.float16)
    evidence = np.random.default_rng(0).gamma(6.0, 0.7, len(rows)).astype(np.float32)  # of the photo, for every member
    for view in range(len(VIEWS)):
        logits = bank[(np.arange(len(rows)) * 7 + view + number) % len(bank)].copy()
        logits[np.arange(len(rows)), np.maximum(labels, 0)] += evidence
        np.exp(logits, out=logits)
        probs[:, view] = logits / logits.sum(1, keepdims=True)
    ViewPredictions(ids, VIEWS, probs).save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--blended", type=int, default=20, help="so many of them are drawn and blended")
    parser.add_argument("--rows", type=int, default=16_465)
    parser.add_argument("--test", type=int, default=7_382)
    parser.add_argument("--classes", type=int, default=104)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return time_verbs(Path(folder), options)


def time_verbs(folder: Path, options: argparse.Namespace) -> int:
    names = [f"m{n:02}" for n in range(options.members)]
    members = "\n".join(
        f"  {name}: {{architecture: cnn, image_size: {16 + n}, alpha: 0.25, weights: none}}"
        for n, name in enumerate(names)
    )
    file, work = folder / "params.yaml", folder / "work" / "large"
    lists = {"views": ", ".join(VIEWS), "blended": ", ".join(names[: options.blended])}
    file.write_text(PARAMS.format(root=ROOT, members=members, **lists))
    write_data(work / "data", options.rows, options.test, options.classes)
    workspace = Workspace(work, load_params(file))
    drawn = dict[str, Path]()
    for number, name in enumerate(names):
        write_member(workspace, name, number % options.blended, drawn)
    slow, environment = [], {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # users' Python keeps its compiled modules
    for verb in VERBS:
        arguments = ["--params", file, "--work", folder / "work", "--submissions", folder / "submissions"]
        if verb == "compare-submissions":
            digest = next((folder / "submissions").glob("*.csv")).stem
            arguments += ["--a", digest, "--b", digest]
        command, log = [sys.executable, "-m", "pipelines", verb, *map(str, arguments)], folder / f"{verb}.txt"
        cost = measured(command, environment, folder / "submissions", log)
        assert cost.exit_code == 0, f"{verb}: {log.read_text()[-4000:]}"
        numbers = f"{cost.seconds:7.2f} s  {cost.processor_seconds:7.2f} s of processor time  {cost.peak_memory / 1e9:5.2f} GB"
        print(f"{verb:20} {numbers}", flush=True)
        if verb != "blend" and cost.processor_seconds > LIMIT:
            slow.append(verb)
    megabytes = (work / "report.html").stat().st_size / 1e6
    print(
        f"RESULT: {options.members} members ({min(options.blended, options.members)} blended) x "
        f"{FOLDS} folds x {len(VIEWS)} views at {options.rows:,} x {options.classes}: report of "
        f"{megabytes:.1f} MB; slower than stated: {', '.join(slow) or 'none'}; load {os.getloadavg()[0]:.1f}"
    )
    return 1 if slow or megabytes > 8 else 0


if __name__ == "__main__":
    sys.exit(main())
