"""What preflight is asked about a member, what it answers, and everything that an answer depends on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from competition.config.params import FROM_FILE, Member
from competition.config.plugins import plugin_digests
from competition.config.search_space import AT_RUN_TIME
from competition.files.manifest import path_digest, sha256
from competition.preflight.lowering import Shapes
from competition.preflight.pairs import NEWEST, JaxPair
from competition.preflight.topology import Topology

# Parameters of train that the loop, the host or the step table supplies in every step. One that is missing here only costs an
# unnecessary compilation.
SUPPLIED = {*AT_RUN_TIME, "batch", "low_resolution_epochs", "ema"}


@dataclass(frozen=True)
class PreflightResult:
    """Result for one step of one member on one TPU. Bytes, operations and seconds are per device and step."""

    step: str  # train | predict
    batch: int  # images in a global batch
    verdict: str  # fits | lowers (mode ops) | too_big | unsupported | crashed
    memory: int = 0  # bytes of HBM; 0 = unknown
    limit: int = 0  # bytes of HBM available
    flops: float = 0.0
    moved: float = 0.0  # bytes between HBM and the device
    roofline: float = 0.0  # lower bound of the seconds, from published peak rates
    lower_seconds: float = 0.0
    compile_seconds: float = 0.0
    operations: tuple[str, ...] = ()
    remedy: str = ""
    message: str = ""
    view: str = ""  # the view whose transform is unsupported; "" = the network
    mode: str = "compile"  # of the request; quick: memory and bytes are approximate

    @property
    def good(self) -> bool:
        """Whether the step would run."""
        return self.verdict in ("fits", "lowers")


@dataclass(frozen=True)
class PreflightRequest:
    """One member on one TPU."""

    member: Member
    shapes: Shapes
    topology: Topology
    backend: str  # tensorflow | jax
    mode: str  # compile | quick: at the lowest compiler effort | ops: lower only
    pair: JaxPair = NEWEST


def result_from_json(raw: Mapping[str, Any]) -> PreflightResult:
    """Build a result from its JSON. Raises TypeError or KeyError for any other content."""
    return PreflightResult(**{**raw, "operations": tuple(raw["operations"])})


def compiled_in(request: PreflightRequest) -> dict[str, object]:
    """Return everything a result depends on. Seed, epochs, rates and augmentation are not compiled in."""
    member, train = request.member, request.member.train
    package = Path(__file__).parents[1]
    training = package / "training"
    names = ("model.py", "device_augmentation.py")
    sources = [*training.glob("engine*.py"), *training.glob("optimizer*.py"), *(training / name for name in names)]
    sources += [package / "preflight" / "lowering.py", package / "ensemble" / "views.py"]
    is_from_file = member.architecture == FROM_FILE
    views = (part for view in request.shapes.views for part in view.split("+"))
    own_code = plugin_digests(MODELS=(member.architecture,), AUGMENTATIONS=train.augment, VIEWS=views)
    network_file = [member.normalise, path_digest(Path(member.weights))] if is_from_file else []
    return {
        "architecture": [member.architecture, member.image_size, member.training_size, member.alpha],
        "own": [*network_file, own_code],
        "train": {key: value for key, value in asdict(train).items() if key not in SUPPLIED},
        "averaged": train.ema > 0,
        "augmented_in_step": any(
            (train.brightness, train.contrast, train.saturation, train.erase, train.mixup, train.cutmix)
        ),
        "shapes": request.shapes,
        "topology": request.topology.name if request.mode != "ops" else "any",
        "backend": request.backend,
        "mode": request.mode,
        "sources": {p.name: sha256(p) for p in sorted(sources)},
        "versions": request.pair.versions,
    }
