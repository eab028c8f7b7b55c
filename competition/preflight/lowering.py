"""A member's real training step and real prediction step as StableHLO, lowered on a machine without any TPU.

The step functions are the engine's own, so what is lowered is what trains. TensorFlow gives the program of one
replica: on one device the sum over replicas is no operation, so its all-reduce is not in it. JAX gives the program of
all devices together, with it.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from competition.config.params import Member
from competition.ensemble.views import get_views
from competition.preflight.topology import Topology, devices_of

Spec = tuple[tuple[int, ...], str]  # shape, dtype


class Unsupported(Exception):
    """Some operation has no form on the accelerator."""

    def __init__(self, operations: Sequence[str], message: str) -> None:
        super().__init__(message)
        self.operations = tuple(operations)


@dataclass(frozen=True)
class Shapes:
    """What is compiled in, beside the member: global batches, and by how many replicas they are shared."""

    classes: int
    replicas: int
    batch: int
    predict_batch: int
    views: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """One program of a step."""

    lower: Callable[[], Any]  # raises Unsupported where it cannot be
    times: int = 1  # that the step runs it
    view: str = ""  # whose transform it is


Parts = dict[str, list[Part]]  # step -> its programs


def programs(backend: str, member: Member, shapes: Shapes, steps: Sequence[str], topology: Topology | None) -> Parts:
    """What "train" and "predict" run: a prediction step asks the same network once for each view.

    The model is built once, without its pretrained weights. topology: None lowers for no TPU in particular.
    KERAS_BACKEND must be `backend` by now. TensorFlow's programs are bytes, JAX's are jax.stages.Lowered.
    """
    member = replace(member, weights="none", train=replace(member.train, precision=tpu_precision(member)))
    found = _jax_programs(member, shapes, topology) if backend == "jax" else _tensorflow_programs(member, shapes)
    return {step: found[step] for step in steps}


def tpu_precision(member: Member) -> Literal["float32", "bfloat16"]:
    return "float32" if member.train.precision == "float32" else "bfloat16"


def _tensorflow_programs(member: Member, shapes: Shapes) -> Parts:
    import tensorflow as tf

    from competition.training.engine_tensorflow import TensorFlowEngine

    engine = TensorFlowEngine(*_ground(member, shapes, tf.distribute.get_strategy(), "tensorflow"))
    specs = _specs(member, shapes, shapes.replicas, engine._depths)

    def part(function: Callable[..., Any], spec: str, times: int = 1, view: str = "") -> Part:
        return Part(lambda: lowered(function, specs[spec]), times, view)

    network = part(engine._probabilities, "predict", len(shapes.views))
    return {"train": [part(engine._replica_step, "train")], "predict": [network, *_view_parts(part, shapes.views)]}


def _view_parts(part: Callable[..., Part], names: Sequence[str]) -> list[Part]:
    from competition.training.engine import apply_view

    return [part(apply_view(view), "view", 1, name) for name, view in zip(names, get_views(names), strict=True)]


def _jax_programs(member: Member, shapes: Shapes, topology: Topology | None) -> Parts:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from competition.training.engine_jax import JaxEngine

    here = Mesh(jax.devices("cpu")[:1], ("batch",))
    engine = JaxEngine(*_ground(member, shapes, here, "jax"))
    mesh = here if topology is None else Mesh(devices_of(topology), ("batch",))
    whole, cut = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))

    def spec(shape: tuple[int, ...], dtype: Any) -> Any:
        along_batch = shape[0] in (shapes.batch, shapes.predict_batch)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=cut if along_batch else whole)

    def state(names: Iterable[str]) -> dict[str, Any]:
        return {n: jax.ShapeDtypeStruct(engine._state[n].shape, engine._state[n].dtype, sharding=whole) for n in names}

    # TensorFlow's specs are of one replica's share, JAX's program is that of all devices together.
    specs = {step: [spec(*s) for s in some] for step, some in _specs(member, shapes, 1, engine._depths).items()}

    def train() -> Any:
        *batch, row = specs["train"]
        step = jax.jit(engine._step, donate_argnums=0, out_shardings=(whole, whole))
        return _traced(lambda: step.trace(state(engine._state), tuple(batch), row), topology)

    def predict() -> Any:
        ask = jax.jit(engine._probabilities, out_shardings=whole)
        model = state([*(engine._averages.get(name, name) for name in engine._variables), *engine._random])
        model = dict(zip([*engine._variables, *engine._random], model.values(), strict=True))
        return _traced(lambda: ask.trace(model, *specs["predict"]), topology)

    def part(function: Callable[..., Any], spec: str, times: int, view: str) -> Part:
        ask = jax.jit(function, out_shardings=cut)
        return Part(lambda: _traced(lambda: ask.trace(*specs[spec]), topology), times, view)

    network = Part(predict, len(shapes.views))
    return {"train": [Part(train)], "predict": [network, *_view_parts(part, shapes.views)]}


def _traced(trace: Callable[[], Any], topology: Topology | None) -> Any:
    try:
        return trace().lower(lowering_platforms=("tpu",)) if topology is None else trace().lower()
    except (NotImplementedError, ValueError, TypeError) as error:
        raise Unsupported(operations_in(str(error)), one_line(str(error))) from None


def _ground(member: Member, shapes: Shapes, strategy: Any, backend: str) -> tuple[Any, ...]:
    """What an engine is made of, on one device: global batches, because the loss is divided by them."""
    from competition.training.device import Device
    from competition.training.engine import CompiledIn
    from competition.training.model import build

    device = Device("cpu", 1, strategy, "only to be lowered", backend)
    made = CompiledIn(member.train.accumulate, member.train.ema > 0, False)
    return (lambda: build(member, shapes.classes)), shapes.batch, shapes.predict_batch, device, made


def _specs(member: Member, shapes: Shapes, parts: int, trainable: Any) -> dict[str, list[Spec]]:
    """Arguments of the programs where a global batch is cut into `parts`."""
    from competition.training.optimizer import StepScalars

    image, share = (member.image_size, member.image_size, 3), shapes.batch // parts
    row = len(StepScalars._fields) - 1 + len(trainable)
    train: list[Spec] = [((share, *image), "uint8"), ((share, shapes.classes), "float32"), ((share,), "float32")]
    asked = (shapes.predict_batch // parts, *image)
    return {"train": [*train, ((row,), "float32")], "predict": [(asked, "float32")], "view": [(asked, "uint8")]}


def lowered(function: Callable[..., Any], specs: Sequence[Spec]) -> bytes:
    """Serialized StableHLO of a TensorFlow function at these shapes; its variables become arguments.

    Raises Unsupported for an operation that XLA cannot express.
    """
    import tensorflow as tf

    step = tf.function(function, jit_compile=True, autograph=False)
    try:
        ask = step.experimental_get_compiler_ir(*(tf.TensorSpec(shape, dtype) for shape, dtype in specs))
        program = ask(stage="stablehlo_serialized")
    except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
        raise Unsupported(operations_in(str(error)), one_line(str(error))) from None
    return bytes(program)


def operations_in(message: str) -> list[str]:
    """The operations a compiler's message complains of, each once."""
    listed = re.findall(r"(\w+) \(No registered '\w+' OpKernel", message)
    if not listed:
        listed = re.findall(r"failed to legalize operation '([\w.]+)'|unregistered operation '([\w.]+)'", message)
        listed = [first or second for first, second in listed]
    if not listed:
        listed = re.findall(r"\[\[\{\{node [^}]*?(\w+?)(?:_\d+)?\}\}", message)
    return list(dict.fromkeys(listed))


def one_line(message: str, most: int = 400) -> str:
    return " ".join(message.split())[:most]
