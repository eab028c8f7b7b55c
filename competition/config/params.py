"""The keys of params.yaml with the type and range of each value, as frozen dataclasses.

`validation.validate` checks types and ranges; constructing a dataclass or `replace` checks nothing. params.yaml holds the
default values: only keys that few files need have one here.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetPydanticSchema

from competition.config.plugins import Plugins

MAX_INT32 = 2**31 - 1  # seeds and counts go through 32-bit tensors
Count = Annotated[int, Field(ge=0, le=MAX_INT32)]
Positive = Annotated[int, Field(ge=1, le=MAX_INT32)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
ShareAboveZero = Annotated[float, Field(gt=0, le=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
ImageSize = Annotated[int, Field(ge=8, le=4096)]  # pixels of the side
Names = Annotated[tuple[str, ...], Field(min_length=1)]
# Block -> parameter that was removed -> the default that it had, which results were made with.
REMOVED: dict[str, dict[str, Any]] = {
    "prepare": {"largest_megapixels": 150},
    "convert": {"stratify": True},
    "train": {"loop": "auto", "rand_augment": 0, "trivial_augment": False},
    "tune": {"objectives": "score", "patience": 0, "trained_on": "tune_folds"},
    "policy": {"seconds_limit": 0.0, "same_below": 1.0e-6},
}
SECRET = {"secret": True}  # metadata of a parameter that may hold a secret, see secrets.py
FROM_FILE = "from_file"  # architecture: the network itself is read from `weights`
HUB = "hub:"  # weights: the name of a KerasHub preset follows
TIMM = "timm:"  # begins the architecture of a frozen network of timm
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]  # also the name of a folder


def _as_tuple(value: Any) -> Any:
    """Convert one text, number or boolean to a tuple of one, and a list to a tuple."""
    return tuple(value) if isinstance(value, list) else (value,) if isinstance(value, str | int | float) else value


FileNames = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
Trackers = Annotated[tuple[Literal["tensorboard", "mlflow", "wandb"], ...], BeforeValidator(_as_tuple)]
Choice = bool | int | Finite | str
Choices = Annotated[tuple[Choice, ...], BeforeValidator(_as_tuple)]


class Block:
    """A block of keys. Unknown keys are errors."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class CompetitionParams(Block):
    name: Name
    adapter: str  # a name in ADAPTERS, or in those of the plugins
    slug: str
    source: str
    image_size: Count
    validation: Literal["pool", "apart"]
    id_column: str
    label_column: str
    metric: str
    target: Literal["", "single", "multi", "ordinal", "regression"]
    predicts: Literal["", "label", "probabilities"]
    miniature: Share
    class_level: Count


@dataclass(frozen=True)
class Prepare(Block):
    folds: Annotated[int, Field(ge=2, le=50)]
    seed: Count
    near_bits: Annotated[int, Field(ge=0, le=32)]
    near_pixels: Annotated[float, Field(ge=0, le=255)]
    bad_images: Literal["error", "drop"]
    label_conflicts: Literal["error", "drop", "keep"]
    group_by: Literal["hash", "embedding", "column"]
    group_column: str
    shard_megabytes: Positive
    external: dict[Name, str]
    fit: Literal["squash", "crop"]


@dataclass(frozen=True)
class CloudTpu(Block):
    name: str
    zone: str
    project: str


@dataclass(frozen=True)
class DeviceParams(Block):
    backend: Literal["auto", "tensorflow", "jax"]
    require: Literal["any", "gpu", "tpu"]
    logical_devices: Count
    threads: Count
    tpu: CloudTpu
    hang_seconds: NonNegative
    retries: Count
    checkpoint_minutes: NonNegative
    score_epochs: Count


@dataclass(frozen=True)
class CacheParams(Block):
    ram_gigabytes: NonNegative
    disk_gigabytes: NonNegative
    folder: str


@dataclass(frozen=True)
class Train(Block):
    seed: Count
    epochs: Positive
    batch: Positive
    learning_rate: AboveZero
    warmup: Share
    weight_decay: NonNegative
    clip_norm: NonNegative
    label_smoothing: BelowOne
    dropout: BelowOne
    norm_momentum: BelowOne
    flip: Literal["none", "horizontal", "both"]
    shift: Annotated[float, Field(ge=0, le=0.5)]
    zoom: BelowOne
    rotate: Annotated[float, Field(ge=0, le=180)]
    brightness: Share
    contrast: BelowOne
    saturation: BelowOne
    crop: ShareAboveZero
    erase: Share
    mixup: NonNegative
    cutmix: NonNegative
    class_weights: Literal["none", "sqrt", "balanced"]
    sampling: Literal["natural", "balanced"]
    patience: Count
    patience_share: Annotated[float, Field(gt=0, le=0.5)]
    probe: bool
    freeze_norm: bool
    low_resolution_epochs: Share
    low_resolution_size: ShareAboveZero
    precision: Literal["auto", "float32", "bfloat16", "float16"]
    steps_per_call: Positive
    accumulate: Positive
    ema: BelowOne
    focal_gamma: Annotated[float, Field(ge=0, le=10)]
    clip_value: NonNegative
    epsilon: AboveZero
    freeze_epochs: Count
    layer_decay: ShareAboveZero
    augment: dict[str, Finite]  # name in AUGMENTATIONS -> strength
    albumentations: str = ""  # file of a serialised pipeline; "" = none
    trained_share: ShareAboveZero = 1.0  # of the layers, from the last one on; the others keep their weights


@dataclass(frozen=True)
class Dimension(Block):
    """One searched parameter: an interval, or choices. Which keys are needed depends on the parameter (search_space.py)."""

    low: Finite | None = None
    high: Finite | None = None
    log: bool = False
    step: AboveZero | None = None
    choices: tuple[Choice, ...] = ()
    # Searched parameter with choices -> its values for which this one is searched; otherwise the member's own value is used.
    when: dict[str, Choices] = field(default_factory=dict)


@dataclass(frozen=True)
class Tune(Block):
    trials: Count
    hours: NonNegative
    members: tuple[str, ...]
    folds: tuple[Count, ...]
    confirm_seeds: Annotated[int, Field(ge=1, le=100)]
    seed: Count
    sampler: Literal["tpe", "gp", "cmaes", "random", "grid"]
    pruner: Literal["none", "median", "percentile", "asha", "hyperband"]
    warm_start: tuple[Literal["earlier", "family"], ...]
    storage: str = field(repr=False, metadata=SECRET)  # a URL may hold a password
    heartbeat: AboveZero
    retries: Count
    search: dict[str, Dimension]


@dataclass(frozen=True)
class Head(Block):
    """The part of a frozen-feature member that is fitted: what turns the features of its network into probabilities."""

    kind: Literal["linear", "rbf", "mlp", "neighbours"]
    views: Names = ("identity",)  # of the training rows; each is a row of its own, with an equal share of the weight
    # Tried on the inner validation part of each fold model; one value is used as it is; () = those of the kind (heads.py).
    # linear, rbf: C, the inverse of the penalty.  mlp: the penalty.  neighbours: how many.
    strengths: tuple[AboveZero, ...] = ()
    hidden: Positive = 256  # mlp: hidden units
    also: tuple[Name, ...] = ()  # members whose networks' features are appended
    columns: tuple[Name, ...] = ()  # of train.csv and test.csv, appended as features, such as age and sex


@dataclass(frozen=True)
class Member(Block):
    architecture: str
    image_size: ImageSize
    alpha: AboveZero
    weights: str
    train: Train
    # The following keys may be left out of a member, because most members do not need them.
    external: tuple[str, ...] = ()
    teacher: tuple[str, ...] = ()
    teacher_weight: Share = 0.3
    normalise: Literal["auto", "none", "0..1", "-1..1", "imagenet", "bgr"] = "auto"  # of the pixels, before the network
    tuned_folds: tuple[Count, ...] = ()  # folds whose held-out rows chose its hyperparameters, besides tune.folds
    # It is trained with train.seed, train.seed + 1, ...; the results are averaged as one member.
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    train_size: Count = 0  # pixels of its training images, at most image_size, at which it predicts; 0 = image_size
    head: Head | None = None  # the network is not trained, only this head on its features
    views: tuple[str, ...] = ()  # that it is predicted under; () = predict.views

    @property
    def training_size(self) -> int:
        """Pixels of its training images."""
        return self.train_size or self.image_size

    @property
    def without_pretrained_weights(self) -> "Member":
        """The member for a network whose weights are loaded afterwards. A network that is read from a file keeps its file."""
        return self if self.architecture == FROM_FILE else replace(self, weights="none")


@dataclass(frozen=True)
class ExternalFiles(Block):
    """The block `predictions` of a member that was trained outside this project; it has no other keys."""

    oof: str
    # One file with the mean over fold models, or one file per fold model; () only for a competition without test images.
    test: FileNames = ()
    folds: str = ""


@dataclass(frozen=True)
class Predict(Block):
    batch: Positive
    views: Names


@dataclass(frozen=True)
class BudgetParams(Block):
    portfolio: str


@dataclass(frozen=True)
class Policy(Block):
    method: Literal["identity", "mean", "greedy"]
    objective: Literal["log_likelihood", "metric"]
    rounds: Positive


@dataclass(frozen=True)
class Blend(Block):
    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")]
    members: tuple[str, ...]
    methods: Names
    rounds: Positive
    bags: Positive
    ridge: NonNegative
    seed: Count
    class_shares: Literal["training", "test"]


@dataclass(frozen=True)
class Decision(Block):
    rules: Names
    passes: Positive
    shrink_rows: NonNegative


@dataclass(frozen=True)
class Honest(Block):
    """How honest scores are computed."""

    resamples: Positive  # bootstrap
    seed: Count
    blocks: Annotated[int, Field(ge=2)]  # folds are merged into at most this many blocks for cross-fitting


@dataclass(frozen=True)
class KaggleParams(Block):
    submit: Literal["file", "notebook"]
    max_attempts: Positive
    first_wait: AboveZero
    longest_wait: AboveZero
    stall: AboveZero
    listing_lag: NonNegative
    score_wait: NonNegative
    score_pause: AboveZero
    public_share: ShareAboveZero


@dataclass(frozen=True)
class KernelParams(Block):
    owner: str
    slug: str
    machine: str
    devices: Positive
    internet: bool
    hours: AboveZero
    reserve: NonNegative
    pause: AboveZero
    datasets: tuple[str, ...]


@dataclass(frozen=True)
class StorageParams(Block):
    bucket: str
    seconds: AboveZero


@dataclass(frozen=True)
class ConvertParams(Block):
    source: str
    target: str
    sizes: Annotated[tuple[ImageSize, ...], Field(min_length=1)]
    kind: Literal["jpeg", "png"]
    quality: Annotated[int, Field(ge=1, le=100)]
    fit: Literal["squash", "crop"]
    shard_megabytes: Positive
    least_shards: Positive
    bad_images: Literal["error", "drop"]
    engine: Literal["local", "beam"]
    processes: Count
    beam_python: str
    beam_options: tuple[str, ...] = field(repr=False, metadata=SECRET)  # such as --db_password=...


@dataclass(frozen=True)
class Needs(Block):
    """What one fold model takes of a machine."""

    cpus: NonNegative
    gpus: NonNegative
    tpu_chips: Literal[0, 1, 2, 4, 8]  # the numbers of chips that Ray accepts
    memory_gigabytes: NonNegative


@dataclass(frozen=True)
class ClusterParams(Block):
    needs: Needs
    members: dict[Name, Needs]  # completed from `needs`
    folder: str
    shared: str
    retries: Count
    public: bool


@dataclass(frozen=True)
class Params(Block):
    plugins: Annotated[Plugins, GetPydanticSchema(lambda _, handler: handler(str))]  # a path in the file; "" = none
    track: Trackers
    competition: CompetitionParams
    prepare: Prepare
    device: DeviceParams
    cache: CacheParams
    train: Train
    tune: Tune
    budget: BudgetParams
    members: dict[Name, Member]  # trained here
    external: dict[Name, ExternalFiles]  # members with external predictions; under `members` in the file
    predict: Predict
    policy: Policy
    blend: Blend
    decision: Decision
    honest: Honest
    kaggle: KaggleParams
    kernel: KernelParams
    storage: StorageParams
    convert: ConvertParams
    cluster: ClusterParams

    def views_of(self, member: Member) -> Names:
        """The views that a member is predicted under."""
        return member.views or self.predict.views
