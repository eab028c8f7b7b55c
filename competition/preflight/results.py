"""What preflight is asked about a member and what it answers: requests, cached results, the cells of the table."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from competition.config.digests import digest_of
from competition.config.params import FROM_FILE, Member, Params
from competition.config.plugins import Plugins
from competition.config.search_space import AT_RUN_TIME
from competition.files.manifest import path_digest, sha256, write_json
from competition.input_pipeline.mixup import has_device_part
from competition.preflight.lowering import Shapes
from competition.preflight.pairs import NEWEST, JaxPair
from competition.preflight.topology import GIB, Topology
from competition.training.device import round_up_batch

STEPS = ("train", "predict")
VERDICTS = {  # as shown to the user
    "fits": "fits",
    "lowers": "lowers",
    "too_big": "DOES NOT FIT",
    "unsupported": "UNSUPPORTED",
    "crashed": "CRASHED",
}
COLUMNS = ("member", "step", "batch", "verdict", "memory per device", "used", "minimum step time", "compiled in")
NOTE = "the minimum step time is a lower bound from published peak rates, not a measurement"

# Part of an unsupported operation's name -> remedy; "" is in all names.
REMEDIES = {
    "ImageProjectiveTransform": "rotate, zoom and shift on the host (train.rotate, train.zoom, train.shift do)",
    "ScaleAndTranslate": "resize with antialias=False, or on the host",
    "ResizeBicubic": "resize bilinearly, or on the host",
    "CropAndResize": "crop by slicing, then resize bilinearly",
    "RandomGamma": "draw from a uniform or normal distribution, or on the host",
    "PyFunc": "call Python on the host, in the input pipeline",
    "": "move it to the host (input pipeline), or choose another architecture or view",
}

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
    operations: tuple[str, ...] = ()  # that are unsupported; one text with the compiler's message where it names none
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
    plugins: Plugins  # of the parameters, which may define the network, augmentations and views
    backend: str  # tensorflow | jax
    mode: str  # compile | quick: at the lowest compiler effort | ops: lower only
    pair: JaxPair = NEWEST


def compiled_in(request: PreflightRequest) -> dict[str, object]:
    """Return everything a result depends on. Seed, epochs, rates and augmentation are not compiled in."""
    member, train = request.member, request.member.train
    package = Path(__file__).parents[1]
    training = package / "training"
    names = ("model.py", "device_augmentation.py")
    sources = [*training.glob("engine*.py"), *training.glob("optimizer*.py"), *(training / name for name in names)]
    sources += [package / "preflight" / "lowering.py", package / "ensemble" / "view_transforms.py"]
    is_from_file = member.architecture == FROM_FILE
    views = (part for view in request.shapes.views for part in view.split("+"))
    own_code = request.plugins.digests_by_kind(MODELS=(member.architecture,), AUGMENTATIONS=train.augment, VIEWS=views)
    network_file = [member.normalise, path_digest(Path(member.weights))] if is_from_file else []
    return {
        "architecture": [member.architecture, member.image_size, member.training_size, member.alpha],
        "own": [*network_file, own_code],
        "train": {key: value for key, value in asdict(train).items() if key not in SUPPLIED},
        "averaged": train.ema > 0,
        "augmented_in_step": has_device_part(train),
        "shapes": request.shapes,
        "topology": request.topology.name if request.mode != "ops" else "any",
        "backend": request.backend,
        "mode": request.mode,
        "sources": {p.name: sha256(p) for p in sorted(sources)},
        "versions": request.pair.versions,
    }


def cached_results(request: PreflightRequest, steps: Sequence[str], cache: Path) -> dict[str, PreflightResult]:
    """Return the cached results of exactly this request, by step."""
    depends, results = compiled_in(request), {}
    for step in steps:
        file = cache / f"{digest_of({**depends, 'step': step})[:32]}.json"
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):  # missing, damaged or of an earlier version
            stored = json.loads(file.read_text(encoding="utf-8"))["answer"]
            results[step] = PreflightResult(**{**stored, "operations": tuple(stored["operations"])})
    return results


def store_result(request: PreflightRequest, result: PreflightResult, cache: Path) -> None:
    """Write the result to the cache."""
    depends = compiled_in(request)
    file = cache / f"{digest_of({**depends, 'step': result.step})[:32]}.json"
    write_json(file, {"depends": depends, "answer": result})


def request_of(
    member: Member, params: Params, topology: Topology, backend: str, classes: int, mode: str = "compile"
) -> PreflightRequest:
    """The request for a member, compiled with the newest jax.

    member: with tuned values.  backend: "auto" means jax, which TPU images use.
    """
    parts = topology.devices * member.train.accumulate
    batch, predict = round_up_batch(member.train.batch, parts), round_up_batch(params.predict.batch, topology.devices)
    shapes = Shapes(classes, topology.devices, batch, predict, params.views_of(member))
    return PreflightRequest(member, shapes, topology, params.plugins, "jax" if backend == "auto" else backend, mode)


def objections(request: PreflightRequest, cache: Path) -> list[str] | None:
    """Return why this member would not run, one sentence per failing step; [] if it runs, None without cached results.

    Nothing is compiled. Only results of exactly this request count, so stale results are ignored.
    """
    quick = cached_results(replace(request, mode="quick"), STEPS, cache)
    results = {step: result for step, result in quick.items() if result.good} | cached_results(request, STEPS, cache)
    if not results:
        return None
    sentences = []
    for step, result in results.items():
        reason = f"uses {', '.join(result.operations)}, which is not supported"
        if result.verdict == "too_big":
            needed = f"{result.memory / GIB:.2f} GiB of" if result.memory else "more"
            reason = f"needs {needed} memory per device, {result.limit / GIB:.2f} GiB are available"
        sentences += [] if result.good else [f"{step} {reason}: {remedy_for(result, request.member)}"]
    return sentences


def remedy_for(result: PreflightResult, member: Member) -> str:
    """What to change in the parameters of a step that does not fit or is not supported."""
    if result.verdict == "unsupported":
        return next(remedy for part, remedy in REMEDIES.items() if part in " ".join(result.operations))
    size = "train_size" if result.step == "train" and member.train_size else "image_size"
    remedies = [f"lower {result.step}.batch or the member's {size}"]
    remedies += ["raise train.accumulate"] if result.step == "train" else []
    remedies += ["set train.precision: bfloat16"] if member.train.precision == "float32" else []
    return ", or ".join(remedies)


def cells(member: str, step: str, result: PreflightResult) -> list[str]:
    """One row of the table with COLUMNS."""
    about, quickly = ("about ", " quickly") if result.mode == "quick" else ("", "")
    return [
        member,
        step,
        f"{result.batch}",
        VERDICTS[result.verdict],
        f"{about}{result.memory / GIB:.2f} GiB" if result.memory else "?",
        f"{result.memory / result.limit:.0%}" if result.memory else "?",
        f"{1000 * result.roofline:.1f} ms" if result.roofline else "-",
        f"{result.compile_seconds:.0f} s{quickly}" if result.compile_seconds else "-",
    ]
