"""What a budget buys, beside what a user's forty lines buy. python -m benchmarks.score_per_hour --params nets.yaml photos.zip ...

A quarter of the labelled photos of each source is kept as fresh rows, without their labels; --quarters 4 repeats everything until each
photo was fresh once, where one quarter says too little. The alternatives fit scikit-learn to the pooled features (photo and mirror
image) of each network that the parameter file states under `members`: logistic regression with the best of three penalties by
cross-validation, and a support vector machine. --notebook MEMBER fine-tunes that network as a short notebook does. With --autogluon,
AutoGluon Tabular (best_quality, 300 s) learns from the same features. goldfold gets the same networks and `HOURS`. --shift changes
colours, sharpness and noise of the fresh photos, as another camera would.

Scores are macro-F1 on the fresh rows, over the classes that these have; processor time is that of all processes, with the start of
Python and the decoding of images, the mean of the quarters.
A budget of M processor minutes is M / cores minutes of HOURS. Every cell is a process of its own; finished cells are kept in the
folder --out, so a second call continues. The picture and the table are written there, too.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.photos import labelled_photos
from competition.config.params import Member
from competition.config.params_file import load_params
from competition.ensemble.bootstrap import Evaluation, paired
from competition.ensemble.metrics import METRICS

ROOT = Path(__file__).resolve().parents[1]
ALTERNATIVES = ("logistic regression", "support vector machine")
AUTOGLUON, AUTOGLUON_SECONDS = "AutoGluon", 300.0
NOTEBOOK, EPOCHS, PATIENCE = "notebook", 20, 5
QUARTER = 4  # one part in so many is fresh
METRIC = METRICS["macro_f1_present"]  # few fresh rows lack some of 102 classes
PENALTIES = (0.003, 0.03, 0.3)
ADDRESS = "competition: {{name: photos, source: {source}, metric: macro_f1}}"


@dataclass(frozen=True)
class Cell:
    """One way on one set, or on one quarter of it."""

    source: str
    way: str
    processor_minutes: float
    wall_minutes: float
    score: float  # macro-F1 on the fresh rows
    claimed: float | None  # the honest score
    predicted: list[int]  # of the fresh rows
    labels: list[int]  # of the same rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path, help="a zip or a folder, as in benchmarks/photos.py")
    parser.add_argument("--params", type=Path, required=True, help="a parameter file whose members state the networks")
    parser.add_argument("--minutes", type=float, nargs="+", default=[1, 5, 20, 60], help="of processor time of budgets")
    parser.add_argument("--quarters", type=int, default=1, help="so many are fresh, one after the other")
    parser.add_argument("--images", type=int, default=0, help="so many photos of each source, drawn at random; 0 = all")
    parser.add_argument("--shift", action="store_true", help="change the fresh photos as another camera would")
    parser.add_argument("--notebook", metavar="MEMBER", nargs="+", default=[], help="networks that are also fine-tuned")
    parser.add_argument("--autogluon", metavar="PYTHON", help="of the environment of benchmarks/autogluon_tabular.py")
    parser.add_argument("--out", type=Path, default=ROOT / "work" / "score_per_hour")
    parser.add_argument("--alternative", nargs=2, metavar=("WAY", "MEMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alternative:
        way, member = options.alternative
        print(json.dumps(alternative(options.sources[0], options.params, way, member, options.autogluon)))
        return
    kinds = (*ALTERNATIVES, AUTOGLUON) if options.autogluon else ALTERNATIVES
    ways = [f"{way}, {name}" for name in load_params(options.params).members for way in kinds]
    ways += [f"{NOTEBOOK}, {name}" for name in options.notebook]
    ways += [f"goldfold, {minutes:g} min" for minutes in options.minutes]
    cells = []
    for source in options.sources:
        name = f"{source.stem}-shifted" if options.shift else source.stem
        folders = [options.out / (f"{name}-{quarter}" if quarter else name) for quarter in range(options.quarters)]
        labels = [split(source, folder, n, options.images, options.shift) for n, folder in enumerate(folders)]
        for way in ways:
            parts = [
                measured(folder, way, own, options.params, options.autogluon)
                for folder, own in zip(folders, labels, strict=True)
            ]
            cells.append(joined(parts))
    print("\n".join(table(cells)))
    draw(cells, options.out / "score_per_hour.png")


def split(source: Path, folder: Path, quarter: int, images: int, shift: bool) -> list[int]:
    """Write the competition to `folder` and return the labels of its test rows in the order of the file names.

    quarter: 0 to 3, which one is the test part.
    """
    photos = list(labelled_photos(str(source)))
    drawn = np.random.default_rng(0).permutation(len(photos))[: images or None]
    photos = [photos[number] for number in sorted(drawn)]
    classes = sorted({label for label, _ in photos})
    digests = [hashlib.sha256(data).hexdigest() for _, data in photos]  # equal photos stay on one side, at random
    is_fresh = [int(digest[:8], 16) * QUARTER // 16**8 == quarter for digest in digests]
    names = {number: f"p{digests[number][:12]}{number:06}" for number in range(len(photos))}
    if not (folder / "data" / "train.csv").is_file():
        for part in ("train", "test"):
            (folder / "data" / part).mkdir(parents=True, exist_ok=True)
        for number, (_, data) in enumerate(photos):
            part = "test" if is_fresh[number] else "train"
            data = by_another_camera(data, number) if shift and is_fresh[number] else data
            (folder / "data" / part / f"{names[number]}.jpg").write_bytes(data)
        rows = {part: [n for n in names if is_fresh[n] == (part == "test")] for part in ("train", "test")}
        write_csv(folder / "data" / "sample_submission.csv", ((names[n], classes[0]) for n in rows["test"]))
        write_csv(folder / "data" / "train.csv", ((names[n], photos[n][0]) for n in rows["train"]))
    tested = sorted((names[n], classes.index(photos[n][0])) for n in names if is_fresh[n])
    (folder / "classes.json").write_text(json.dumps(classes))
    (folder / "labels.json").write_text(json.dumps([label for _, label in tested]))
    return [label for _, label in tested]


def by_another_camera(photo: bytes, seed: int) -> bytes:
    """The JPEG with other colours, brightness and sharpness and with noise, drawn from the seed."""
    from PIL import Image, ImageEnhance, ImageFilter

    rng = np.random.default_rng(seed)
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    for kind in (ImageEnhance.Color, ImageEnhance.Brightness, ImageEnhance.Contrast):
        image = kind(image).enhance(rng.uniform(0.5, 1.5))
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.0, 1.5)))
    noisy = np.asarray(image, np.float32) + rng.normal(0.0, 12.0, (image.height, image.width, 3))
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def write_csv(path: Path, rows: object) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *rows])  # type: ignore[misc]


def measured(folder: Path, way: str, labels: list[int], params: Path, autogluon: str | None) -> Cell:
    """The result of one way, computed in a process of its own or taken from an earlier call.  autogluon: its Python."""
    path = folder / f"{way.replace(', ', '-').replace(' ', '_')}.json"
    if path.is_file():
        stored = json.loads(path.read_text())
        return Cell(**{**stored, "score": score_of(stored["predicted"], labels), "labels": labels})
    before, started = children_seconds(), time.monotonic()
    kind, which = way.split(", ")
    if kind == "goldfold":
        predicted, claimed, unpaid = run_goldfold(folder, float(which.split()[0]), params)
    else:
        command = [sys.executable, "-m", "benchmarks.score_per_hour", str(folder), "--params", str(params)]
        command += ["--autogluon", autogluon] if autogluon else []
        command += ["--alternative", kind, which]
        output = subprocess.check_output(command, cwd=ROOT, text=True)
        predicted, claimed, unpaid = json.loads(output.splitlines()[-1]), None, (0.0, 0.0)
    processor, wall = children_seconds() - before - unpaid[0], time.monotonic() - started - unpaid[1]
    cell = Cell(folder.name, way, processor / 60, wall / 60, score_of(predicted, labels), claimed, predicted, labels)
    path.write_text(json.dumps(asdict(cell)))
    print(f"{cell.source}, {way}: {cell.score:.4f} in {cell.processor_minutes:.1f} processor minutes", flush=True)
    return cell


def joined(parts: list[Cell]) -> Cell:
    """The quarters of a set as one cell: all their rows, and the means of time and honest score."""
    predicted, labels = ([one for cell in parts for one in getattr(cell, kind)] for kind in ("predicted", "labels"))
    claims = [cell.claimed for cell in parts if cell.claimed is not None]
    claimed = float(np.mean(claims)) if claims else None
    processor, wall = (
        float(np.mean([getattr(cell, kind) for cell in parts])) for kind in ("processor_minutes", "wall_minutes")
    )
    return Cell(parts[0].source, parts[0].way, processor, wall, score_of(predicted, labels), claimed, predicted, labels)


def children_seconds() -> float:
    """Processor time of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def score_of(predicted: list[int], labels: list[int]) -> float:
    return METRIC.evaluate(np.array(labels), np.array(predicted), max(*labels, *predicted) + 1)


def run_goldfold(folder: Path, minutes: float, params: Path) -> tuple[list[int], float, tuple[float, float]]:
    """(labels of the fresh rows, honest score, (processor seconds, seconds) of the download, which no budget counts)"""
    home = folder / f"goldfold-{minutes:g}"
    home.mkdir(exist_ok=True)
    file = home / "params.yaml"
    file.write_text(f"extends: {params.resolve()}\n{ADDRESS.format(source=(folder / 'data').resolve())}\n")
    places = ["--params", str(file), "--work", str(home / "work"), "--submissions", str(home / "submissions")]
    hours = ["--hours", f"{minutes / 60 / (os.cpu_count() or 1):.6f}", *places]
    before, started, command = children_seconds(), time.monotonic(), [sys.executable, "-m", "pipelines"]
    subprocess.run([*command, "download", *places], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    download = children_seconds() - before, time.monotonic() - started
    verbs = ["budget", *hours, "+", "predict", *hours]
    with (home / "log.txt").open("w") as log:
        subprocess.run([*command, *verbs], cwd=ROOT, check=True, stdout=log, stderr=log)
    classes = json.loads((folder / "classes.json").read_text())
    (submission,) = (home / "submissions").glob("*.csv")
    with submission.open(newline="") as rows:
        predicted = [classes.index(row["label"]) for row in sorted(csv.DictReader(rows), key=lambda row: row["id"])]
    (scores,) = (home / "work" / "photos" / "blend").glob("*/scores.json")
    return predicted, float(json.loads(scores.read_text())["honest"]), download


def alternative(folder: Path, params: Path, way: str, member: str, autogluon: str | None) -> list[int]:
    """Labels of the fresh rows by one network, as a user would write it: fine-tuned, or its features and scikit-learn or AutoGluon."""
    import keras
    from PIL import Image
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    from competition.training.model import build

    stated = load_params(params).members[member]
    if way == NOTEBOOK:
        return fine_tuned(folder, stated)
    whole, size = build(stated, 2), stated.image_size
    network = keras.Model(whole.inputs, whole.get_layer("logits").input)  # what its last layer reads

    def features(paths: list[Path]) -> np.ndarray:
        """(n, F): the mean over each photo and its mirror image."""
        parts = []
        for start in range(0, len(paths), 64):
            opened = [Image.open(path).convert("RGB").resize((size, size)) for path in paths[start : start + 64]]
            pixels = np.stack([np.asarray(image, np.float32) for image in opened])
            both = [np.asarray(network(batch, training=False)) for batch in (pixels, pixels[:, :, ::-1])]
            parts.append((both[0] + both[1]) / 2)
        return np.concatenate(parts)

    photos, y = labelled_files(folder)
    x = features(photos)
    fresh = features(sorted((folder / "data" / "test").glob("*.jpg")))
    if way == AUTOGLUON:
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            np.savez(file, train=x, labels=y, test=fresh)
            script = ROOT / "benchmarks" / "autogluon_tabular.py"
            command = [str(autogluon), str(script), file.name, str(AUTOGLUON_SECONDS)]
            return json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
    if way == ALTERNATIVES[0]:
        grid = {"logisticregression__C": PENALTIES}
        model = GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), grid, cv=5)
    else:
        model = make_pipeline(StandardScaler(), SVC(C=3.0))
    model.fit(x, y)
    return [int(label) for label in model.predict(fresh)]


def labelled_files(folder: Path) -> tuple[list[Path], np.ndarray]:
    """The files of the labelled photos and their labels, (N,) int."""
    classes = json.loads((folder / "classes.json").read_text())
    with (folder / "data" / "train.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    files = [folder / "data" / "train" / f"{row['id']}.jpg" for row in rows]
    return files, np.array([classes.index(row["label"]) for row in rows])


def fine_tuned(folder: Path, stated: Member) -> list[int]:
    """Labels of the fresh rows by transfer learning in two phases: the new last layer alone, then all but the normalisation.

    The best epoch of each phase is chosen on a fifth of the labelled rows.
    """
    import keras
    from PIL import Image

    from competition.training.model import build

    photos, y = labelled_files(folder)
    order, size = np.random.default_rng(0).permutation(len(y)), stated.image_size

    def pixels(paths: list[Path]) -> np.ndarray:
        """(n, size, size, 3) uint8"""
        return np.stack([np.asarray(Image.open(path).convert("RGB").resize((size, size))) for path in paths])

    x, y = pixels(photos)[order], y[order]
    network = build(stated, int(y.max()) + 1)
    flipped = keras.layers.RandomFlip("horizontal")(network.input)
    model = keras.Model(network.input, keras.layers.Softmax()(network(flipped)))
    held_out, batch = len(x) // 5, 32
    steps = EPOCHS * -(-(len(x) - held_out) // batch)
    (body,) = (layer for layer in network.layers if isinstance(layer, keras.Model))
    for trains_body, rate in ((False, 1e-3), (True, keras.optimizers.schedules.CosineDecay(1e-4, steps))):
        body.trainable = trains_body
        for layer in body.layers:
            layer.trainable = trains_body and not isinstance(layer, keras.layers.BatchNormalization)
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
        best = keras.callbacks.EarlyStopping("val_accuracy", patience=PATIENCE, restore_best_weights=True)
        validation = x[:held_out], y[:held_out]
        model.fit(x[held_out:], y[held_out:], batch, EPOCHS, 0, [best], validation_data=validation)
    fresh = pixels(sorted((folder / "data" / "test").glob("*.jpg")))
    both = model.predict(fresh, verbose=0) + model.predict(fresh[:, :, ::-1], verbose=0)
    return [int(label) for label in both.argmax(1)]


def table(cells: list[Cell]) -> list[str]:
    """Every cell, those of goldfold beside the best alternative of at most the same processor time."""
    lines = [
        "| set | way | processor minutes | macro-F1, fresh rows | honest score | against the best alternative so far |",
        "|---|---|---|---|---|---|",
    ]
    for cell in cells:
        claimed, gained = "" if cell.claimed is None else f"{cell.claimed:.4f}", ""
        others = [one for one in cells if one.source == cell.source and one.claimed is None]
        affordable = [one for one in others if one.processor_minutes <= cell.processor_minutes]
        if cell.claimed is not None and affordable:
            best = max(affordable, key=lambda one: one.score)
            evaluation = Evaluation(METRIC, max(*cell.labels, *best.predicted, *cell.predicted) + 1, 1000, 0)
            gain = paired(np.array(cell.labels), np.array(best.predicted), np.array(cell.predicted), evaluation)
            gained = f"{gain.value:+.4f} +- {gain.error:.4f} ({best.way})"
        cells_of_row = (cell.source, cell.way, f"{cell.processor_minutes:.1f}", f"{cell.score:.4f}", claimed, gained)
        lines.append(f"| {' | '.join(cells_of_row)} |")
    return lines


def draw(cells: list[Cell], path: Path) -> None:
    """Score against processor time, one chart per set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    sources = list(dict.fromkeys(cell.source for cell in cells))
    figure, axes = plt.subplots(1, len(sources), figsize=(5 * len(sources), 4), squeeze=False)
    for axis, source in zip(axes[0], sources, strict=True):
        own = [cell for cell in cells if cell.source == source]
        errors = np.sqrt([cell.score * (1 - cell.score) / len(cell.predicted) for cell in own])
        for kind, marker in zip(("goldfold", *ALTERNATIVES, AUTOGLUON, NOTEBOOK), ("o-", "s", "^", "D", "v")):
            if chosen := [n for n, cell in enumerate(own) if cell.way.startswith(kind)]:
                x, y = [own[n].processor_minutes for n in chosen], [own[n].score for n in chosen]
                axis.errorbar(x, y, errors[chosen], fmt=marker, label=kind, capsize=3)
        axis.set(xscale="log", title=source, xlabel="processor minutes", ylabel="macro-F1 on fresh rows")
        for each in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
            each(FuncFormatter(lambda minutes, _: f"{minutes:g}" if f"{minutes:g}".strip("0.")[:1] in "125" else ""))
    shown = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="lower center", ncols=len(shown), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))  # room for the legend
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
