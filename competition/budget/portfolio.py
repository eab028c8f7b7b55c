"""What a budget can be spent on: the members of the parameter file and those of a portfolio, a plain YAML file."""

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from competition.budget.parameters import with_members
from competition.config.errors import InvalidParameter, UserError
from competition.config.params import FROM_FILE, HUB, Head, Member, Params
from competition.config.params_file import file_tree
from competition.config.validation import validate
from competition.config.yaml_text import read_yaml
from competition.ensemble.metrics import TargetKind

PORTFOLIO = Path(__file__).resolve().parents[2] / "recipes" / "portfolio.yaml"  # unless budget.portfolio names another
FEW_ROWS = 500  # of a fold model; with fewer, fine-tuning loses against frozen features (facts of own_images.md)
IMAGES_SEEN = 20_000  # of fine-tuning, over all epochs; 6 epochs of 3,228 photos
EPOCHS = (1, 10)
WHOLE_SEEN, WHOLE_EPOCHS = 40_000, 20  # where all layers are trained because features are weak
MANY_ROWS = 20_000  # of a fold model, from which on mixup helps (BiT-HyperRule, arXiv 1912.11370, section 3.3)
LEARNING_RATE = 6e-4  # for batches of 32, as in recipes/own-images.yaml
# Features say little about the images if a linear head on them has a larger share of the loss of constant probabilities. On 500
# rows or more: photos .02 to .23, drawn textures .48, drawn letters .69, turned photos .92.
WEAK_LOSS = 0.35
# With a still larger share the first layers are trained at lower rates: turned photos score .22 at one rate and .46 so, but letters .70
# and .66, textures .76 and .68.
LITTLE_LOSS = 0.8
WEIGHTS_HOST = "storage.googleapis.com"  # of keras.applications
HUB_HOST = "www.kaggle.com"  # of KerasHub
CANDIDATES = ("linear", "rbf", "mlp", "tuned")  # of a network, called <network>-<candidate>
# Training the last quarter of the layers costs half as much as all of them and scores the same (docs/measured_runs.md).
FINE_TUNING = {
    "probe": True,
    "label_smoothing": 0.0,
    "layer_decay": 0.2,
    "weight_decay": 0.02,
    "freeze_norm": True,
    "trained_share": 0.25,
}


@dataclass(frozen=True)
class Line:
    """One candidate of a portfolio file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    cost: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # of one image, relative to the other lines
    source: str
    member: dict[str, object]  # as under `members:` of a parameter file


@dataclass(frozen=True)
class Network:
    """A network whose features can be used."""

    name: str
    member: Member  # without a head
    cost: float | None  # of one image, relative to other networks; None = unknown
    is_stated: bool = False  # by a member of the parameter file


def read_portfolio(path: Path, params: Params) -> list[Network]:
    """The networks of a portfolio file in its order, with what their members have in common with those of `params`."""
    tree = read_yaml(path)
    try:
        lines = TypeAdapter(list[Line]).validate_python(tree.get("candidates"))
        if not lines:
            return []
        complete = file_tree(with_members(replace(params, external={}), {}, ()))
        tree = {**complete, "members": {line.name: dict(line.member) for line in lines}}
        members = validate(tree, params.plugins).members
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(f"{path}: candidates.{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
    except InvalidParameter as error:
        raise UserError(f"{path}: {'.'.join(map(str, error.keys))}: {error.problem}") from None
    return [Network(line.name, members[line.name], line.cost) for line in lines]


def networks_of(params: Params, portfolio: list[Network]) -> list[Network]:
    """The networks with pretrained weights of the members, then those of the portfolio, each once; best expected first.

    A line of the portfolio with ImageNet weights takes the weights file that a member states for the same architecture.
    """
    stated = []
    for name, member in params.members.items():
        if member.weights == "none":
            continue
        if member.head is not None:  # its network is named by what it is: mobilenet-224, dinov2_base-224
            is_file = member.architecture == FROM_FILE
            preset = Path(member.weights.removeprefix(HUB)).name.partition(".")[0]
            what = preset if is_file else member.architecture.partition(":")[2] or member.architecture
            name = f"{re.sub('[^a-z0-9_]+', '_', what.lower())}-{member.image_size}"
        network_alone = replace(member, head=None, teacher=(), seeds=1, train_size=0)
        # The relative cost is that of a line of the same architecture, by the number of pixels; from a file comes every architecture.
        same = ("architecture", "alpha", *(["weights"] if member.architecture == FROM_FILE else []))
        alike = [one for one in portfolio if all(getattr(one.member, key) == getattr(member, key) for key in same)]
        line = next((one for one in alike if one.cost), None)
        cost = line.cost * (member.image_size / line.member.image_size) ** 2 if line is not None and line.cost else None
        stated.append(Network(_free_name(name, params), network_alone, cost, is_stated=True))
    files = {(one.member.architecture, one.member.alpha): one.member.weights for one in stated}
    offered = []
    for network in portfolio:
        member = network.member
        if member.weights == "imagenet":
            weights = files.get((member.architecture, member.alpha), member.weights)
            member = replace(member, weights=weights)
        name = network.name if network.name not in params.members else f"{network.name}-portfolio"
        offered.append(Network(_free_name(name, params), member, network.cost))
    unique: dict[tuple[object, ...], Network] = {}
    for network in [*stated, *offered]:
        one = network.member
        key = (one.architecture, one.image_size, one.alpha, one.weights, one.normalise)
        names = [other.name for other in unique.values()]
        if key not in unique:
            is_taken = network.name in names
            unique[key] = replace(network, name=f"{network.name}-{len(names)}") if is_taken else network
    return list(unique.values())


def _free_name(name: str, params: Params) -> str:
    """The name of a network, changed if a member of the parameter file has that of one of its candidates."""
    while any(f"{name}-{kind}" in params.members for kind in CANDIDATES):
        name += "-network"
    return name


def missing_weights(member: Member, is_reachable: Callable[[str], bool]) -> str:
    """Why the weights of a member cannot be had, in a few words; "" = they can.  is_reachable: of a host."""
    is_hub = member.weights.startswith(HUB)
    if member.architecture == FROM_FILE and not member.weights.endswith(".keras") and not find_spec("keras_hub"):
        return "keras-hub is not installed"
    if member.weights == "none" or "://" in member.weights:
        return ""
    if member.weights != "imagenet" and not is_hub:
        return "" if Path(member.weights).exists() else f"{member.weights} is not on this machine"
    if is_hub:
        name = member.weights.removeprefix(HUB)
        cache = Path(os.environ.get("KAGGLEHUB_CACHE", "~/.cache/kagglehub")).expanduser()
        attached = Path("/kaggle/input")
        cached = [file for folder in (cache, attached) for file in folder.glob(f"models/*/*/*/{name}")]
        cached += attached.glob(f"*/*/{name}")
    else:
        name = member.architecture.lower()
        files = (Path.home() / ".keras" / "models").glob("*no*top*.h5")
        cached = [file for file in files if re.sub("[_-]", "", file.name).startswith(name)]
    if cached or is_reachable(HUB_HOST if is_hub else WEIGHTS_HOST):
        return ""
    return "the weights are not on this machine, and there is no network"


def is_reachable(host: str) -> bool:
    """Whether a host answers on its HTTPS port within three seconds."""
    with suppress(OSError), socket.create_connection((host, 443), timeout=3.0):
        return True
    return False


def frozen(network: Network, kind: str, views: tuple[str, ...]) -> Member:
    """A member with a head on the features of a network, which is fitted to all `views` of the training rows."""
    return replace(network.member, head=Head(kind, views))  # type: ignore[arg-type]


def unanimous_choice(losses: Mapping[str, Sequence[float]]) -> str:
    """The candidate with the least loss in every fold; "" if the folds disagree.

    losses: candidate -> one loss per fold, on rows that this fold trains on. No row takes part in the choice of the fold that holds
    it out, so a choice that all folds make alone costs no honest row.
    """
    choices = {min(losses, key=lambda name: losses[name][fold]) for fold in range(len(next(iter(losses.values()), ())))}
    return choices.pop() if len(choices) == 1 else ""


@dataclass(frozen=True)
class Weakness:
    """Shares of the loss of constant probabilities that a linear head on features has: the least and the most of the folds."""

    least: float = 0.0
    most: float = 0.0

    @property
    def is_weak(self) -> bool:
        """Whether every fold says that the features say little about the images."""
        return self.least > WEAK_LOSS


def weakness(losses: Sequence[float], class_rows: Sequence[np.ndarray], kind: TargetKind) -> Weakness:
    """The weakness of features, 0 of a regression.

    losses: one per fold, on rows that it trains on, as for unanimous_choice.  class_rows: per fold (N, C) bool, of its training rows.
    """
    from scipy.special import entr

    if kind == "regression":
        return Weakness()
    shares = [rows.mean(0) for rows in class_rows]
    constant = [entr(one).sum() if kind == "single" else (entr(one) + entr(1 - one)).mean() for one in shares]
    ratios = [loss / least if least else 0.0 for loss, least in zip(losses, constant, strict=True)]
    return Weakness(min(ratios), max(ratios))


def fine_tuned(network: Network, rows: int, kind: TargetKind, weak: Weakness) -> Member:
    """A fine-tuned member with epochs, learning rate and mixup from the training rows of a fold model.

    kind: of the targets. Where the last layer cannot be solved (`probe`), it alone is trained in the first epoch.
    weak: of features; if they are weak, all layers are trained, and for more epochs.
    """
    seen, most = (WHOLE_SEEN, WHOLE_EPOCHS) if weak.is_weak else (IMAGES_SEEN, EPOCHS[1])
    epochs = min(max(round(seen / rows), EPOCHS[0]), most)
    train = network.member.train
    rate = LEARNING_RATE * (train.batch / 32) ** 0.5
    settings = FINE_TUNING | {"epochs": epochs, "learning_rate": rate, "patience": 0, "freeze_epochs": 0}
    if weak.is_weak:
        # Of drawn letters, 4 epochs score .66 with all layers and .31 with a quarter of them. Within ten epochs, images that stay in
        # place score more, and fewer trainings collapse (docs/measured_runs.md, trainings on one H100).
        settings |= {"trained_share": 1.0, "shift": 0.0, "zoom": 0.0}
        if weak.most < LITTLE_LOSS:
            settings |= {"layer_decay": 1.0}
    settings["mixup"] = 0.1 if rows >= MANY_ROWS else 0.0
    if network.member.weights == "none":
        settings |= {"probe": False, "trained_share": 1.0}
    elif kind != "single":
        settings |= {"probe": False, "freeze_epochs": 1, "epochs": max(epochs, 2)}
    return replace(network.member, train=replace(train, **settings))
