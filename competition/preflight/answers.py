"""Would this member's steps run on that TPU? Asked of the TPU's own compiler, in a child process, where no TPU is.

Answers are kept by the digest of everything that is compiled in, so that the same question is answered at once.
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
from competition.artifacts.manifest import digest_of, sha256, to_plain, write_json
from competition.config.errors import UserError
from competition.config.params import Member
from competition.preflight.lowering import Shapes, one_line
from competition.preflight.topology import Topology, roofline_seconds

ROOT = Path(competition.__file__ or "").parent.parent
INSTALL = "python -m pip install -c constraints.txt -e '.[preflight]'"
ROOM = 0.8  # of the memory: what is compiled quickly and needs more is compiled again with all effort
GRAIN = 8  # images per device: a TPU lays a batch out in rows of eight, what lies between is padding

# Operation -> what to do about it. Any other gets the sentence under "".
REMEDIES = {
    "ImageProjectiveTransformV3": "rotate, zoom and shift on the host (train.rotate, train.zoom, train.shift do)",
    "ImageProjectiveTransformV2": "rotate, zoom and shift on the host (train.rotate, train.zoom, train.shift do)",
    "ScaleAndTranslate": "resize with antialias=False, or on the host",
    "ResizeBicubic": "resize bilinearly, or on the host",
    "CropAndResize": "crop by slicing, then resize bilinearly",
    "StatelessRandomGammaV3": "draw mixing shares uniformly, or on the host",
    "StatelessRandomGammaV2": "draw mixing shares uniformly, or on the host",
    "RandomGamma": "draw mixing shares uniformly, or on the host",
    "DecodeJpeg": "decode on the host, in the input pipeline",
    "DecodeImage": "decode on the host, in the input pipeline",
    "PyFunc": "call Python on the host, in the input pipeline",
    "EagerPyFunc": "call Python on the host, in the input pipeline",
    "": "do it on the host, in the input pipeline, or take another architecture or view",
}


@dataclass(frozen=True)
class PreflightResult:
    """One step of one member on one TPU. Bytes, operations and seconds are of one device and one step."""

    step: str  # train | predict
    batch: int  # images in a global batch
    verdict: str  # fits | lowers (asked for no more) | too_big | unsupported | crashed
    memory: int = 0  # bytes of HBM needed; 0 = not known
    limit: int = 0
    flops: float = 0.0
    moved: float = 0.0
    roofline: float = 0.0  # least seconds by published peaks: an estimate, never reached
    lower_seconds: float = 0.0
    compile_seconds: float = 0.0
    operations: tuple[str, ...] = ()
    remedy: str = ""
    message: str = ""
    view: str = ""  # whose transform stands in the way, where it is not the network
    mode: str = "compile"  # of the question; quick: memory and bytes are near those of the real program, not the same

    @property
    def good(self) -> bool:
        return self.verdict in ("fits", "lowers")


@dataclass(frozen=True)
class PreflightRequest:
    member: Member
    shapes: Shapes
    topology: Topology
    backend: str  # tensorflow | jax
    mode: str  # compile | quick: at the compiler's least effort | ops: lower only


Say = Callable[[str, int], None]  # what is being done, for how many seconds already


def installed(package: str) -> bool:
    return find_spec(package) is not None


def require_compiler(mode: str, backend: str) -> None:
    """Raises UserError, with the command that installs it, when what this question needs is not here."""
    wanted = [p for p in ("jax", "libtpu") if mode != "ops" or (p == "jax" and backend == "jax")]
    missing = [package for package in wanted if not installed(package)]
    if missing:
        also = "; MODE=ops answers without it on the TensorFlow backend" if mode != "ops" else ""
        raise UserError(
            f"{' and '.join(missing)} not found, preflight compiles with it; `{INSTALL}` installs it (`make preflight` does){also}"
        )


def compiled_in(question: PreflightRequest) -> dict[str, Any]:
    """Everything an answer depends on. Seed, epochs, rates and augmentation are not: they are not compiled in."""
    member, train = question.member, question.member.train
    package = Path(__file__).parents[1]
    training = package / "training"
    sources = [*training.glob("engine*.py"), *training.glob("optimizer*.py"), training / "model.py"]
    sources = sorted([*sources, package / "preflight" / "lowering.py"])
    return {
        "architecture": [member.architecture, member.image_size, member.alpha],
        "train": {key: value for key, value in asdict(train).items() if key not in NOT_COMPILED_IN},
        "averaged": train.ema > 0,
        "shapes": question.shapes,
        "topology": question.topology.name if question.mode != "ops" else "any",
        "backend": question.backend,
        "mode": question.mode,
        "sources": {p.name: sha256(p) for p in [*sources, package / "ensemble" / "views.py"]},
        "versions": {p: _version(p) for p in ("tensorflow-cpu", "tensorflow", "keras", "jax", "libtpu")},
    }


# Keys of train that are not compiled in: what the loop, the host or a row of numbers brings to every step.
# A key that is missing here only costs a compilation.
NOT_COMPILED_IN = {
    *("seed", "epochs", "batch", "loop", "steps_per_call", "patience", "small_epochs", "small_size", "freeze_epochs"),
    *("learning_rate", "warmup", "weight_decay", "clip_norm", "clip_value", "epsilon", "focal_gamma", "layer_decay"),
    *("flip", "shift", "zoom", "rotate", "brightness", "contrast", "saturation", "rand_augment", "erase"),
    *("mixup", "cutmix", "label_smoothing", "class_weights", "sampling", "ema"),
}


def run_preflight(
    question: PreflightRequest, steps: Sequence[str], cache: Path, say: Say, limit_seconds: float, again: bool = False
) -> dict[str, PreflightResult]:
    """An answer for each of `steps`, from `cache` where the same was asked before; what is found is kept there.

    What hardly fits when it is compiled quickly, or does not, is compiled again with all effort, as in mode "compile".
    limit_seconds: a child that takes longer is ended, and its step counts as crashed.  again: whatever the cache has.
    """
    found = {} if again else cached_results(question, steps, cache)
    missing = [step for step in steps if step not in found]
    if missing:
        require_compiler(question.mode, question.backend)
        for step, raw in _child(question, missing, say, limit_seconds).items():
            found[step] = answer = _answer(step, raw, question)
            if answer.verdict != "crashed":
                store_result(question, answer, cache)
    doubted = [
        step for step in steps if found[step].verdict == "too_big" or found[step].memory > ROOM * found[step].limit
    ]
    if question.mode == "quick" and doubted:
        found |= run_preflight(replace(question, mode="compile"), doubted, cache, say, limit_seconds, again)
    return {step: found[step] for step in steps}


def cached_results(question: PreflightRequest, steps: Sequence[str], cache: Path) -> dict[str, PreflightResult]:
    """The answers among `steps` that exactly this question was given before."""
    depends = compiled_in(question)
    found = {step: _kept(_place(depends, step, cache)) for step in steps}
    return {step: answer for step, answer in found.items() if answer is not None}


def store_result(question: PreflightRequest, answer: PreflightResult, cache: Path) -> None:
    depends = compiled_in(question)
    write_json(_place(depends, answer.step, cache), {"depends": depends, "answer": answer})


def _place(depends: dict[str, Any], step: str, cache: Path) -> Path:
    return cache / f"{digest_of({**depends, 'step': step})[:32]}.json"


def largest_batch(
    asked: Callable[[int], PreflightResult], replicas: int, start: int, most: int
) -> PreflightResult | None:
    """The answer for the largest global batch that fits: GRAIN more on each replica do not, or exceed `most`.

    asked: global batch -> Answer.  Memory grows almost linearly with the batch, so the next guess is drawn through two
    known points; four compilations usually do. None when not even GRAIN images per replica fit.
    """
    grain = replicas * GRAIN
    known: dict[int, PreflightResult] = {}

    def at(units: int) -> PreflightResult:
        if units not in known:
            known[units] = asked(units * grain)
        return known[units]

    top = most // grain
    low, high = 0, top + 1  # `low` units fit, `high` units do not
    units = min(max(round(start / grain), 1), max(top, 1))
    while high - low > 1:
        answer = at(units)
        if not answer.good and answer.verdict != "too_big":
            return answer
        low, high = (units, high) if answer.good else (low, units)
        units = _next_guess({u: a for u, a in known.items() if a.memory}, low, high)
    return known.get(low)


def _next_guess(known: dict[int, PreflightResult], low: int, high: int) -> int:
    """Between `low` and `high`, not including them (or `low` when nothing lies between)."""
    if high - low <= 1:
        return low
    points = sorted((units, answer.memory, answer.limit) for units, answer in known.items())
    if not points:
        return (low + high) // 2
    if len(points) == 1:
        units, memory, limit = points[0]
        guess = int(units * limit / memory)
    else:
        (u1, m1, limit), (u2, m2, _) = sorted(points, key=lambda p: abs(p[1] - p[2]))[:2]
        slope = (m2 - m1) / (u2 - u1)
        guess = int(u1 + (limit - m1) / slope) if slope > 0 else (low + high) // 2
    # A line that points outside is off by little at first; where it stays outside, the steps grow.
    reach = 2 ** max(len(points) - 3, 0)
    if guess <= low:
        guess = low + reach
    elif guess >= high:
        guess = high - reach
    return min(max(guess, low + 1), high - 1)


def remedy_for(answer: PreflightResult, operations: Sequence[str]) -> str:
    if answer.verdict == "too_big":
        return f"lower {answer.step}.batch or the member's image_size, or set train.precision: bfloat16"
    if answer.verdict == "unsupported":
        return next((REMEDIES[name] for name in operations if name in REMEDIES), REMEDIES[""])
    if answer.verdict == "crashed":
        return f"the pair of jax and libtpu may not belong together; install the pinned one by `{INSTALL}`"
    return ""


def _answer(step: str, raw: dict[str, Any], question: PreflightRequest) -> PreflightResult:
    shapes, topology = question.shapes, question.topology
    operations = tuple(raw.get("operations", ()))
    answer = PreflightResult(
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
        question.mode,
    )
    return replace(answer, remedy=remedy_for(answer, operations))


def _child(
    question: PreflightRequest, steps: Sequence[str], say: Say, limit_seconds: float
) -> dict[str, dict[str, Any]]:
    """Raw answers; a step that ended the process is "crashed", and so are those after it."""
    with tempfile.TemporaryDirectory() as name:
        request, answers, folder = Path(name) / "request.json", Path(name) / "answer.json", Path(name)
        asked = {"member": question.member, "shapes": question.shapes, "topology": question.topology.name}
        write_json(
            request, {**to_plain(asked), "backend": question.backend, "mode": question.mode, "steps": list(steps)}
        )
        command = [sys.executable, "-m", "competition.preflight.child", str(request), str(answers)]
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            child = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, stdin=subprocess.PIPE)
            try:
                _watch(child, folder / "out", say, limit_seconds)
            finally:
                child.kill()
                child.wait()
        raw: dict[str, dict[str, Any]] = json.loads(answers.read_text()) if answers.exists() else {}
        why = f"the compiler's process ended with {child.returncode}: {_last_line(folder / 'err')}"
    return {step: raw.get(step) or {"verdict": "crashed", "message": one_line(why)} for step in steps}


def _watch(child: Any, out: Path, say: Say, limit_seconds: float) -> None:
    started, line, since = time.monotonic(), "", time.monotonic()
    while child.poll() is None and time.monotonic() - started < limit_seconds:
        time.sleep(0.2)
        now = (out.read_text().splitlines() or [""])[-1]
        if now != line:
            line, since = now, time.monotonic()
        say(line or "starting", int(time.monotonic() - since))


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _kept(place: Path) -> PreflightResult | None:
    try:
        return answer_of(json.loads(place.read_text(encoding="utf-8"))["answer"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def answer_of(raw: dict[str, Any]) -> PreflightResult:
    """An answer as its JSON has it. Raises TypeError, KeyError for anything else."""
    return PreflightResult(**{**raw, "operations": tuple(raw["operations"])})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
