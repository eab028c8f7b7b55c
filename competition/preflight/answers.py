"""Check whether a member's training and prediction steps compile and fit on a TPU, with the TPU's compiler and no TPU.

The compiler runs in a child process. Results are cached by the digest of everything that is compiled in.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import competition
from competition.artifacts.manifest import digest_of, path_digest, sha256, to_plain, write_json
from competition.config.errors import UserError
from competition.config.params import Member
from competition.config.plugins import active, plugin_digest
from competition.config.validation import FROM_FILE
from competition.preflight.lowering import Shapes, one_line
from competition.preflight.topology import Topology, roofline_seconds

ROOT = Path(competition.__file__ or "").parent.parent
INSTALL = "python -m pip install -c constraints.txt -e '.[preflight]'"
SAFE_SHARE = 0.8  # of the memory; a quick result above it is compiled again at full effort
GRAIN = 8  # images per device: a TPU pads the batch dimension to multiples of 8

# Unsupported operation -> remedy; "" is the remedy of all others.
REMEDIES = {
    "ImageProjectiveTransformV3": "rotate, zoom and shift on the host (train.rotate, train.zoom, train.shift do)",
    "ImageProjectiveTransformV2": "rotate, zoom and shift on the host (train.rotate, train.zoom, train.shift do)",
    "ScaleAndTranslate": "resize with antialias=False, or on the host",
    "ResizeBicubic": "resize bilinearly, or on the host",
    "CropAndResize": "crop by slicing, then resize bilinearly",
    "StatelessRandomGammaV3": "draw mixup weights uniformly, or on the host",
    "StatelessRandomGammaV2": "draw mixup weights uniformly, or on the host",
    "RandomGamma": "draw mixup weights uniformly, or on the host",
    "DecodeJpeg": "decode on the host, in the input pipeline",
    "DecodeImage": "decode on the host, in the input pipeline",
    "PyFunc": "call Python on the host, in the input pipeline",
    "EagerPyFunc": "call Python on the host, in the input pipeline",
    "": "move it to the host (input pipeline), or choose another architecture or view",
}


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


Report = Callable[[str, int], None]  # (activity, seconds spent on it)


def installed(package: str) -> bool:
    return find_spec(package) is not None


def require_compiler(mode: str, backend: str) -> None:
    """Raise UserError, with the install command, if a package needed for this mode and backend is missing."""
    required = [p for p in ("jax", "libtpu") if mode != "ops" or (p == "jax" and backend == "jax")]
    missing = [package for package in required if not installed(package)]
    if missing:
        alternative = "; MODE=ops works without it on the TensorFlow backend" if mode != "ops" else ""
        raise UserError(
            f"{' and '.join(missing)} not found, needed to compile. Install it with `{INSTALL}` or `make preflight`{alternative}"
        )


def compiled_in(request: PreflightRequest) -> dict[str, Any]:
    """Return everything a result depends on. Seed, epochs, rates and augmentation are not compiled in."""
    member, train = request.member, request.member.train
    package = Path(__file__).parents[1]
    training = package / "training"
    sources = [*training.glob("engine*.py"), *training.glob("optimizer*.py"), training / "model.py"]
    sources.append(training / "batch_augmentation.py")
    sources = sorted([*sources, package / "preflight" / "lowering.py"])
    is_from_file = member.architecture == FROM_FILE
    network_file = [member.normalise, path_digest(Path(member.weights))] if is_from_file else []
    return {
        "architecture": [member.architecture, member.image_size, member.training_size, member.alpha],
        "own": [*network_file, sorted(_own_code(request).items())],
        "train": {key: value for key, value in asdict(train).items() if key not in NOT_COMPILED_IN},
        "averaged": train.ema > 0,
        "augmented_in_step": any(
            (train.brightness, train.contrast, train.saturation, train.erase, train.mixup, train.cutmix)
        ),
        "shapes": request.shapes,
        "topology": request.topology.name if request.mode != "ops" else "any",
        "backend": request.backend,
        "mode": request.mode,
        "sources": {p.name: sha256(p) for p in [*sources, package / "ensemble" / "views.py"]},
        "versions": {p: _version(p) for p in ("tensorflow-cpu", "tensorflow", "keras", "jax", "libtpu")},
    }


def _own_code(request: PreflightRequest) -> dict[str, str]:
    """Digests of the user's code that is compiled in."""
    views = {part for view in request.shapes.views for part in view.split("+")}
    names = {"MODELS": {request.member.architecture}, "AUGMENTATIONS": {*request.member.train.augment}, "VIEWS": views}
    return {f"{kind}.{name}": code for kind in names for name, code in plugin_digest(kind, names[kind]).items()}


# Keys of train that are not compiled in: the loop, the host or the step table supplies them in every step.
# A key missing from this list only costs an unnecessary compilation.
NOT_COMPILED_IN = {
    *("seed", "epochs", "batch", "loop", "steps_per_call", "patience", "small_epochs", "small_size", "freeze_epochs"),
    *("learning_rate", "warmup", "weight_decay", "clip_norm", "clip_value", "epsilon", "focal_gamma", "layer_decay"),
    *(
        "flip",
        "shift",
        "zoom",
        "rotate",
        "brightness",
        "contrast",
        "saturation",
        "rand_augment",
        "trivial_augment",
        "crop",
        "erase",
    ),
    *("mixup", "cutmix", "label_smoothing", "class_weights", "sampling", "ema"),
}


def run_preflight(
    request: PreflightRequest,
    steps: Sequence[str],
    cache: Path,
    report: Report,
    limit_seconds: float,
    again: bool = False,
) -> dict[str, PreflightResult]:
    """Return a result for each of `steps`, from `cache` or from a child process; new results are cached.

    In mode "quick", a step that needs more than SAFE_SHARE of the memory is compiled again in mode "compile".
    limit_seconds: a child that takes longer is killed and its step counts as crashed.  again: ignore the cache.
    """
    results = {} if again else cached_results(request, steps, cache)
    missing = [step for step in steps if step not in results]
    if missing:
        require_compiler(request.mode, request.backend)
        for step, raw in _child(request, missing, report, limit_seconds).items():
            results[step] = result = _result(step, raw, request)
            if result.verdict != "crashed":
                store_result(request, result, cache)
    uncertain = [
        step
        for step in steps
        if results[step].verdict == "too_big" or results[step].memory > SAFE_SHARE * results[step].limit
    ]
    if request.mode == "quick" and uncertain:
        results |= run_preflight(replace(request, mode="compile"), uncertain, cache, report, limit_seconds, again)
    return {step: results[step] for step in steps}


def cached_results(request: PreflightRequest, steps: Sequence[str], cache: Path) -> dict[str, PreflightResult]:
    """Return the cached results of exactly this request, by step."""
    depends = compiled_in(request)
    results = {step: _read_cached(_cache_file(depends, step, cache)) for step in steps}
    return {step: result for step, result in results.items() if result is not None}


def store_result(request: PreflightRequest, result: PreflightResult, cache: Path) -> None:
    """Write the result to the cache."""
    depends = compiled_in(request)
    write_json(_cache_file(depends, result.step, cache), {"depends": depends, "answer": result})


def _cache_file(depends: dict[str, Any], step: str, cache: Path) -> Path:
    return cache / f"{digest_of({**depends, 'step': step})[:32]}.json"


def largest_batch(
    check: Callable[[int], PreflightResult], replicas: int, start: int, most: int
) -> PreflightResult | None:
    """Find the largest global batch that fits: GRAIN more images per replica do not fit or exceed `most`.

    check: global batch -> result.  Memory grows almost linearly with the batch, so each guess is extrapolated from two
    results; four compilations are usually enough. None if not even GRAIN images per replica fit.
    """
    grain = replicas * GRAIN
    results: dict[int, PreflightResult] = {}

    def at(units: int) -> PreflightResult:
        if units not in results:
            results[units] = check(units * grain)
        return results[units]

    top = most // grain
    low, high = 0, top + 1  # `low` units fit, `high` units do not
    units = min(max(round(start / grain), 1), max(top, 1))
    while high - low > 1:
        result = at(units)
        if not result.good and result.verdict != "too_big":
            return result
        low, high = (units, high) if result.good else (low, units)
        units = _next_guess({u: a for u, a in results.items() if a.memory}, low, high)
    return results.get(low)


def _next_guess(results: dict[int, PreflightResult], low: int, high: int) -> int:
    """A value strictly between `low` and `high`; `low` if there is none."""
    if high - low <= 1:
        return low
    points = sorted((units, result.memory, result.limit) for units, result in results.items())
    if not points:
        return (low + high) // 2
    if len(points) == 1:
        units, memory, limit = points[0]
        guess = int(units * limit / memory)
    else:
        (u1, m1, limit), (u2, m2, _) = sorted(points, key=lambda p: abs(p[1] - p[2]))[:2]
        slope = (m2 - m1) / (u2 - u1)
        guess = int(u1 + (limit - m1) / slope) if slope > 0 else (low + high) // 2
    # A guess outside is usually close to the bound; the distance doubles while the guesses stay outside.
    distance = 2 ** max(len(points) - 3, 0)
    if guess <= low:
        guess = low + distance
    elif guess >= high:
        guess = high - distance
    return min(max(guess, low + 1), high - 1)


def remedy_for(result: PreflightResult, operations: Sequence[str]) -> str:
    """One sentence; "" if the step would run."""
    if result.verdict == "too_big":
        return f"lower {result.step}.batch or the member's image_size, or set train.precision: bfloat16"
    if result.verdict == "unsupported":
        return next((REMEDIES[name] for name in operations if name in REMEDIES), REMEDIES[""])
    if result.verdict == "crashed":
        return f"jax and libtpu may be incompatible; install the pinned versions with `{INSTALL}`"
    return ""


def _result(step: str, raw: dict[str, Any], request: PreflightRequest) -> PreflightResult:
    shapes, topology = request.shapes, request.topology
    operations = tuple(raw.get("operations", ()))
    result = PreflightResult(
        step,
        shapes.batch if step == "train" else shapes.predict_batch,
        raw["verdict"],
        int(raw.get("memory", 0)),
        topology.memory,
        raw.get("flops", 0.0),
        raw.get("moved", 0.0),
        roofline_seconds(topology, raw.get("flops", 0.0), raw.get("moved", 0.0)),
        raw.get("lower_seconds", 0.0),
        round(raw.get("seconds", 0.0), 1),
        operations,
        "",
        raw.get("message", ""),
        raw.get("view", ""),
        request.mode,
    )
    return replace(result, remedy=remedy_for(result, operations))


def _child(
    request: PreflightRequest, steps: Sequence[str], report: Report, limit_seconds: float
) -> dict[str, dict[str, Any]]:
    """Raw results by step; a step that ended the process is "crashed", and so are the later ones."""
    with tempfile.TemporaryDirectory() as name:
        request_file, result_file, folder = Path(name) / "request.json", Path(name) / "result.json", Path(name)
        content = {"member": _with_absolute_paths(request.member), "shapes": request.shapes}
        plugins = active().file
        content |= {"topology": request.topology.name, "plugins": str(plugins.resolve()) if plugins else ""}
        write_json(
            request_file, {**to_plain(content), "backend": request.backend, "mode": request.mode, "steps": list(steps)}
        )
        command = [sys.executable, "-m", "competition.preflight.child", str(request_file), str(result_file)]
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            child = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, stdin=subprocess.PIPE)
            try:
                _watch(child, folder / "out", report, limit_seconds)
            finally:
                child.kill()
                child.wait()
        raw: dict[str, dict[str, Any]] = json.loads(result_file.read_text()) if result_file.exists() else {}
        message = f"the compiler's process ended with {child.returncode}: {_last_line(folder / 'err')}"
    return {step: raw.get(step) or {"verdict": "crashed", "message": one_line(message)} for step in steps}


def _with_absolute_paths(member: Member) -> Member:
    """The member as the child process needs it, whose current folder is the project's."""
    path = Path(member.weights)
    return replace(member, weights=str(path.resolve())) if path.exists() else member


def _watch(child: Any, out: Path, report: Report, limit_seconds: float) -> None:
    """Report the last output line of the child until it ends or `limit_seconds` have passed."""
    started, line, since = time.monotonic(), "", time.monotonic()
    while child.poll() is None and time.monotonic() - started < limit_seconds:
        time.sleep(0.2)
        latest = (out.read_text().splitlines() or [""])[-1]
        if latest != line:
            line, since = latest, time.monotonic()
        report(line or "starting", int(time.monotonic() - since))


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def _read_cached(file: Path) -> PreflightResult | None:
    try:
        return result_from_json(json.loads(file.read_text(encoding="utf-8"))["answer"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def result_from_json(raw: dict[str, Any]) -> PreflightResult:
    """Build a result from its JSON. Raises TypeError or KeyError for any other content."""
    return PreflightResult(**{**raw, "operations": tuple(raw["operations"])})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
