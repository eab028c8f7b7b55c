"""goldfold from Python: folds, out-of-fold predictions, scores, fold models, and predictions of new images::

    import goldfold

    g = goldfold.open("photos.yaml")      # after `make download train predict PARAMS=photos.yaml`
    g.scores()                            # DataFrame: members and blend, with standard errors
    g.predict(["a.jpg", "b.jpg"])         # DataFrame: class and probabilities, by the blend
    g = goldfold.fit("photos/", hours=0.5)  # all of it for a folder of photos, within half an hour

This file is an interface: it reads what the stages left under work/ and calls the same functions as they do. Only `fit`
trains and writes, by these stages. TensorFlow is imported when a model is needed. docs/python_api.md describes it.
"""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from competition.config.errors import UserError, did_you_mean
from competition.config.params import Params
from competition.config.params_file import BUDGET_FILE, load_params, parse_overrides
from competition.config.yaml_text import rendered
from competition.ensemble.chain import Chain
from competition.ensemble.metrics import default_labels
from competition.ensemble.settings import validate_params
from competition.ensemble.stored_predictions import IDENTITY, free_name, load_scores
from competition.files.manifest import display_path, read_manifest
from competition.prepare.prepared import fold_tables
from competition.report.stored_blends import stored_decisions
from competition.serving.new_images import NewImage, NewImagePredictor, read_new_images
from competition.serving.served_models import select
from competition.training.backend import start_backend
from competition.workspace.current_blend import current_blend, differences
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.ensemble_inputs import load_predictions, prediction_sources
from competition.workspace.runs import blended_runs
from competition.workspace.workspace import Workspace
from pipelines.terminal.output import with_params

if TYPE_CHECKING:
    import keras

    from competition.serving.estimator import ImageClassifier, ImageRegressor
    from competition.training.device import Device

__all__ = ["Project", "UserError", "fit", "open"]
BLEND = "blend"
ROOT = Path(__file__).resolve().parent


def open(
    params: str | Path = "params.yaml",
    overrides: str = "",
    *,
    work: str | Path = ROOT / "work",
) -> "Project":
    """Open the results of a parameter file, which is looked up in the current folder, then in that of the project.

    overrides: as in SET, e.g. "train.epochs=3".  work: folder of the results; by default that of the commands.
    Raises UserError for invalid parameters, and if nothing was prepared yet.
    """
    sets = tuple(parse_overrides(overrides))
    file = Path(params).expanduser()
    if not file.exists() and (ROOT / file).exists():
        file = ROOT / file
    values = validate_params(load_params(file, sets))
    # The paths of external predictions are from the folder of the project, whatever the current one is.
    external = {
        name: replace(one, oof=str(ROOT / one.oof), test=tuple(str(ROOT / path) for path in one.test))
        for name, one in values.external.items()
    }
    folder = Path(work).expanduser() / values.competition.name
    return Project(Workspace(folder, replace(values, external=external), sets), file, overrides)


def fit(source: str | Path, overrides: str = "", *, hours: float = 0.5, work: str | Path = ROOT / "work") -> "Project":
    """Find and train within so many hours the best members for a folder (or zip) of labelled photos, and open the result.

    It writes a parameter file with the name of `source` beside `work`, unless there is one, and runs
    `goldfold download + train + predict --hours` with it in another process, whose lines it prints. overrides: as SET= of the commands.
    Raises UserError for what the command refuses, and if the file that is there names another source.
    """
    source, work = Path(source).expanduser().resolve(), Path(work).expanduser().resolve()
    if not source.exists():
        raise UserError(f"{source} was not found; expected a folder or a zip of labelled photos")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", source.stem).strip("-._") or "photos"
    file = work.parent / f"{name}.yaml"
    if not file.exists():
        work.parent.mkdir(parents=True, exist_ok=True)
        competition = rendered({"name": name, "source": str(source)})
        base = rendered((ROOT / "recipes" / "own-images.yaml").as_posix())
        file.write_text(f"extends: {base}\ncompetition: {competition}\n", encoding="utf-8")
    elif (other := load_params(file).competition.source) != str(source):
        raise UserError(f"{file} is of another source, {other or 'none'}; rename it, or name another folder by work=")
    folders = ["--params", str(file), "--work", str(work), "--submissions", str(work.parent / "submissions")]
    options = [*folders, "--hours", repr(float(hours)), *(["--set", overrides] if overrides else [])]
    command = [sys.executable, "-m", "pipelines", "download", "+", "train", "+", "predict", *options]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    last = ""
    for line in process.stdout:  # a notebook shows what this process prints, and nothing of its children
        last = line.strip() or last
        if not line.startswith("next: "):  # a command, which would need the same folders
            print(line, end="", flush=True)
    if process.wait():
        raise UserError(last.removeprefix("goldfold: ").replace("--set ", "overrides="))
    return open(work / name / BUDGET_FILE, work=work)


class Project:
    """The results of one parameter file. Create it with `goldfold.open`."""

    def __init__(self, workspace: Workspace, file: Path, sets: str = "") -> None:
        """file: of the parameters, for messages.  sets: what overrides them, for messages."""
        self._workspace, self._prepared, self._file = workspace, workspace.prepared, file
        self._with_params = partial(with_params, params=display_path(file), sets=sets)  # to commands in messages
        self._device: Device | None = None
        self._predictor = NewImagePredictor(workspace, self._open_device)

    def __repr__(self) -> str:
        members = ", ".join([*self.params.members, *self.params.external])
        return f"<goldfold project {self.params.competition.name}: {len(self.classes)} classes; members {members}>"

    @property
    def params(self) -> Params:
        """The validated parameters."""
        return self._workspace.params

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by class number."""
        return self._prepared.competition.classes

    @property
    def folds(self) -> pd.DataFrame:
        """id, label (class name), fold, group and file of every training row, as `make folds` writes them."""
        return fold_tables(self._prepared, self._workspace.folder / "raw")[0]

    @property
    def test(self) -> pd.DataFrame:
        """id and file of every test row."""
        return fold_tables(self._prepared, self._workspace.folder / "raw")[1]

    def oof(self, member: str = BLEND, view: str = "") -> pd.DataFrame:
        """Out-of-fold predictions by id: fold, label, class (the most probable, or the blend's decision), probabilities.

        A column called like a class is row_fold, row_label or row_class.
        Several labels per image: label and class are their names in one text, with the separator of the table of labels.
        A regression has the values but no class.

        member: trained here or external; "blend": each row by a blend that was fitted without the row's fold.
        view: of a member; "" = the untransformed image.
        Honest scores leave out the rows of the folds that chose hyperparameters: `scores().attrs["tuned_folds"]`.
        """
        train = self._prepared.part("train").set_index("id")
        if member == BLEND:
            folder = self._blend_folder()
            ids, probs = load_scores(folder / "honest_oof.npz")
            decided = stored_decisions(folder, ids, self._prepared.competition.targets.kind, len(self.classes))
        else:
            only = self._only(member)
            predictions = load_predictions(only, prediction_sources(only, False)).oof[member]
            ids, probs = predictions.ids, predictions.view(view or IDENTITY)
            decided = default_labels(probs, self._prepared.competition.targets.kind)
        targets = self._prepared.competition.targets.of(train["label"].loc[ids].to_numpy())
        labels = self._prepared.competition.as_table_values(targets)
        facts = {"fold": train["fold"].loc[ids].to_numpy(), "label": labels}
        return self._table(pd.Index(ids, name="id"), facts, decided, probs)

    def scores(self) -> pd.DataFrame:
        """score, standard_error and weight of each member, of the best answer without an image, of equal weights and of the blend.

        The score of the blend is the honest one.

        The metric is in `.attrs["metric"]`, the score on the rows that the blend was chosen on in `.attrs["chosen_on"]`. What is
        doubtful about the predictions of members that were trained elsewhere is warned of, and in `.attrs["notes"]`.
        """
        folder = self._blend_folder()
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        weights = Chain.load(folder / "chain.json").blend.shares
        rows: dict[str, tuple[float, float, float | None]] = {
            name: (one["score"], one["standard_error"], weights.get(name, 0.0))
            for name, one in scores["members"].items()
        }
        rows["trivial baseline"] = (scores["trivial"]["score"], scores["trivial"]["standard_error"], None)
        rows["equal weights"] = (scores["equal"]["score"], scores["equal"]["standard_error"], None)
        rows[BLEND] = (scores["honest"], scores["standard_error"], None)
        table = pd.DataFrame.from_dict(rows, orient="index", columns=["score", "standard_error", "weight"], dtype=float)
        keys = ("metric", "chosen_on", "honest_rows", "tuned_folds", "optimistic", "notes")
        table.attrs.update({key: scores[key] for key in keys})
        for note in scores["notes"]:
            warnings.warn(self._with_params(note), stacklevel=2)
        return table

    def load_model(self, member: str, fold: int) -> "keras.Model":
        """A fold model: images (B, size, size, 3) of 0..255 -> logits (B, C), or values (B, 1) of a regression.

        member: with several seeds the model of the first; cnn@1a2b3c4d is a stored run.
        size: params.members[member].image_size. A softmax of the logits gives probabilities; a sigmoid if images have
        several labels.
        """
        runs = blended_runs(self._only(member))
        if not runs:
            raise UserError(f"member {member} was trained outside this project: its model is not here")
        run = runs[member][0]
        path = fold_manifest_path(run, fold)
        if read_manifest(path) is None:
            if fold not in range(self.params.prepare.folds):
                raise UserError(f"{run.title} has no fold {fold}; its folds are 0 to {self.params.prepare.folds - 1}")
            command = f"`make train MEMBER={run.name} FOLD={fold}` trains it"
            raise UserError(self._with_params(f"fold {fold} of {run.title} is not trained; {command}"))
        from competition.training.checkpoint import load_arrays

        arrays = load_arrays(path.with_name("weights.npz"))
        self._open_device()
        from competition.training.engine import saved_variables
        from competition.training.head_trainer import network_with_head
        from competition.training.model import build

        kind = self._prepared.competition.targets.kind
        if run.member.head is not None:
            return network_with_head(run.member, arrays, kind, self.params.plugins)
        model = build(run.member.without_pretrained_weights, len(self.classes), kind, self.params.plugins)
        for name, variable in saved_variables(model):
            variable.assign(arrays[name])
        return model

    def predict(self, images: NewImage | Sequence[NewImage]) -> pd.DataFrame:
        """Class and probabilities of new images (of a regression the values), which take the way of the test images.

        Decoding, views, mean over the fold models, TTA policy, blend and decision rule are those of the
        submission.  images: a list of paths, encoded bytes, and uint8 arrays (H, W), (H, W, 3) or (H, W, 4); an array
        (N, H, W, 3); or one path of an image or a folder.
        Raises UserError if an image cannot be read, if models changed since the blend, and for a blend that needs the
        predictions of a model that is not here.
        """
        encoded = read_new_images(images)
        probs, decided = self._predictor.predict(encoded)
        return self._table(pd.Index(encoded.names, name="image"), {}, decided, probs)

    def estimator(self, member: str = BLEND) -> "ImageClassifier | ImageRegressor":
        """The trained blend or one member as an estimator of scikit-learn: predict, predict_proba, `classes_`, score.

        X of its methods: as `images` of predict().  Raises UserError as predict().
        """
        if member != BLEND:
            self._only(member)
        name = "" if member == BLEND else member
        select(self._predictor.workspace, name)  # raises UserError
        from competition.serving.estimator import ImageClassifier, ImageRegressor

        competition = self._prepared.competition
        kind = ImageRegressor if competition.target == "regression" else ImageClassifier
        return kind(competition=competition, predictor=self._predictor, member=name)

    def _table(self, index: pd.Index, facts: dict[str, Any], decided: Any, probs: Any) -> pd.DataFrame:
        """The facts, the column `class` of decided labels (none of a regression), then one column per class.

        A column whose name is a class is called row_...
        """
        competition = self._prepared.competition
        if competition.target != "regression":
            facts = {**facts, "class": competition.as_table_values(decided)}
        named = {free_name(name, self.classes): values for name, values in facts.items()}
        return pd.concat(
            [pd.DataFrame(named, index=index), pd.DataFrame(probs, index=index, columns=list(self.classes))], axis=1
        )

    def _only(self, name: str) -> Workspace:
        """The workspace with a blend of this member or stored run alone."""
        known = {**self.params.members, **self.params.external}
        if name not in known and "@" not in name:
            raise UserError(f"no member {name!r}{did_you_mean(name, [*known, BLEND])}")
        return self._workspace.with_blended(name)

    def _blend_folder(self) -> Path:
        """Folder of the blend of these parameters; of another one, with a warning, where there is none."""
        folder = current_blend(self._workspace)
        blend = read_manifest(folder / "manifest.json") if folder is not None else None
        if folder is None or blend is None:
            raise UserError(self._with_params("no blend was found: `make predict` makes one"))
        for sentence in differences(self._workspace, self._file, blend).sentences:
            warnings.warn(self._with_params(sentence), stacklevel=3)
        return folder

    def _open_device(self) -> "Device":
        if self._device is None:
            start_backend(self.params.device.backend)
            from competition.training.device import open_device

            self._device = open_device(self.params.device, self._workspace.folder / "cache" / "compiled")
        return self._device
