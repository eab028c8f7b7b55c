"""Lower the engines' training and prediction steps to StableHLO, on a machine without a TPU.

The step functions are those that train. TensorFlow yields the program of one replica, without the all-reduce, which is
no operation on one device. JAX yields the program of all devices, with the all-reduce.
"""

import re
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from competition.config.errors import UserError
from competition.config.params import Member
from competition.config.plugins import Plugins
from competition.ensemble.view_transforms import get_views
from competition.preflight.topology import GIB, Topology, devices_of

if TYPE_CHECKING:
    from jax.stages import Lowered

Spec = tuple[tuple[int, ...], str]  # shape, dtype
LONGEST_MESSAGE = 400  # characters of a compiler's message that are shown


class CannotCompile(Exception):
    """A compiler's error, read from its message, because jaxlib and TensorFlow raise several types.

    result: verdict (too_big | unsupported) and message, with the bytes that it needs (0 = unknown) or the operations, at least one.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.result: dict[str, object] = {"message": " ".join(message.split())[:LONGEST_MESSAGE]}
        needed = re.search(r"([\d.]+)([KMG])\)? exceeds available HBM \([\d.]+[KMG]\)", message) or re.search(
            r"Used ([\d.]+)([KMG]) of [\d.]+[KMG] hbm", message
        )
        if needed or "RESOURCE_EXHAUSTED" in message or "CompileTimeHbmOom" in message:
            memory = int(float(needed[1]) * {"K": 2**10, "M": 2**20, "G": GIB}[needed[2]]) if needed else 0
            self.result |= {"verdict": "too_big", "memory": memory}
            return
        operations = (
            re.findall(r"(\w+) \(No registered '\w+' OpKernel", message)
            or re.findall(r"(?:failed to legalize|unregistered) operation '([\w.]+)'", message)
            or re.findall(r"\[\[\{\{node [^}]*?(\w+?)(?:_\d+)?\}\}", message)
        )
        operations = operations or [f"an operation ({self.result['message']})"]  # JAX names none
        self.result |= {"verdict": "unsupported", "operations": list(dict.fromkeys(operations))}


@dataclass(frozen=True)
class Shapes:
    """Global batch sizes, views, number of classes and of replicas: compiled in, like the member."""

    classes: int
    replicas: int
    batch: int
    predict_batch: int
    views: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """One program of a step."""

    lower: "Callable[[], bytes | Lowered]"  # raises CannotCompile
    times: int = 1  # runs per step
    view: str = ""  # the view it transforms images for; "" = the network


Parts = dict[str, list[Part]]  # step -> its programs


def programs(
    backend: str, member: Member, shapes: Shapes, steps: Sequence[str], topology: Topology | None, plugins: Plugins
) -> Parts:
    """Return the programs of "train" and "predict". A prediction step runs the network once per view.

    The model is built once, without pretrained weights (unless its network is read from a file). topology: None lowers for
    no particular TPU.
    KERAS_BACKEND must be set to `backend`. TensorFlow's programs are bytes, JAX's are jax.stages.Lowered.
    """
    # On a TPU every precision but float32 means bfloat16.
    precision: Literal["float32", "bfloat16"] = "float32" if member.train.precision == "float32" else "bfloat16"
    member = replace(member.without_pretrained_weights, train=replace(member.train, precision=precision))
    programs_of = partial(_jax_programs, topology=topology) if backend == "jax" else _tensorflow_programs
    parts = programs_of(member, shapes, plugins)
    return {step: parts[step] for step in steps}


def _tensorflow_programs(member: Member, shapes: Shapes, plugins: Plugins) -> Parts:
    import tensorflow as tf

    from competition.training.engine import apply_views
    from competition.training.engine_tensorflow import TensorFlowEngine

    engine = TensorFlowEngine(*_engine_arguments(member, shapes, plugins, tf.distribute.get_strategy(), "tensorflow"))
    specs = _specs(member, shapes, shapes.replicas, engine._layout.groups)

    train = Part(partial(lowered, engine._replica_step, specs["train"]))
    network = Part(partial(lowered, engine.distributed_probabilities, specs["predict"]), len(shapes.views))
    named_views = zip(shapes.views, get_views(shapes.views, plugins), strict=True)
    views = [Part(partial(lowered, apply_views([view]), specs["view"]), view=name) for name, view in named_views]
    return {"train": [train], "predict": [network, *views]}


def _jax_programs(member: Member, shapes: Shapes, plugins: Plugins, topology: Topology | None) -> Parts:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from competition.input_pipeline.mixup import COUNT, has_device_part
    from competition.training.engine import apply_views
    from competition.training.engine_jax import JaxEngine

    cpu_mesh = Mesh(jax.devices("cpu")[:1], ("batch",))
    engine = JaxEngine(*_engine_arguments(member, shapes, plugins, cpu_mesh, "jax"))
    mesh = cpu_mesh if topology is None else Mesh(devices_of(topology), ("batch",))
    replicated, by_batch = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))

    def spec(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        along_batch = shape[0] in (shapes.batch, shapes.predict_batch)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=by_batch if along_batch else replicated)

    # Global shapes: the JAX program is that of all devices.
    specs = {step: [spec(*s) for s in some] for step, some in _specs(member, shapes, 1, engine._layout.groups).items()}

    def part(
        function: Callable[..., Any], arguments: Sequence[Any], times: int = 1, view: str = "", **jit: Any
    ) -> Part:
        step = jax.jit(function, **jit)

        def lower() -> "Lowered":
            try:
                traced = step.trace(*arguments)
                return traced.lower(lowering_platforms=("tpu",)) if topology is None else traced.lower()
            except UserError:  # a ValueError: the user's own function has failed
                raise
            except (NotImplementedError, ValueError, TypeError) as error:
                raise CannotCompile(str(error)) from None

        return Part(lower, times, view)

    *batch, row = specs["train"]
    # A TPU augments in the step; see device_augmentation.augments_on_device.
    if has_device_part(member.train):
        batch[0] = (batch[0], spec((shapes.batch, COUNT), "float32"))
    state, prediction_state = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=replicated),
        (engine._state, engine.prediction_state()),
    )
    train = part(engine._step, [state, tuple(batch), row], donate_argnums=0, out_shardings=(replicated, replicated))
    prediction = [prediction_state, *specs["predict"]]
    network = part(engine._probabilities, prediction, len(shapes.views), out_shardings=replicated)
    views = [
        part(apply_views([view]), specs["view"], 1, name, out_shardings=by_batch)
        for name, view in zip(shapes.views, get_views(shapes.views, plugins), strict=True)
    ]
    return {"train": [train], "predict": [network, *views]}


def _engine_arguments(member: Member, shapes: Shapes, plugins: Plugins, strategy: Any, backend: str) -> tuple[Any, ...]:
    """Arguments of an engine on one device, with global batches, because the loss is divided by them."""
    from competition.training.device import Device
    from competition.training.engine import CompiledIn
    from competition.training.model import build

    device = Device("cpu", 1, strategy, "only to be lowered", backend)
    train = member.train
    compiled_in = CompiledIn(shapes.batch, shapes.predict_batch, train.accumulate, train.ema > 0)
    return (lambda: build(member, shapes.classes, plugins=plugins)), device, compiled_in


def _specs(member: Member, shapes: Shapes, parts: int, trainable: Sized) -> dict[str, list[Spec]]:
    """Shapes and dtypes of the programs' arguments if a global batch is split into `parts`."""
    from competition.training.optimizer import StepScalars

    image, smaller = (member.image_size, member.image_size, 3), (member.training_size, member.training_size, 3)
    share = shapes.batch // parts
    row = len(StepScalars._fields) - 1 + len(trainable)
    train: list[Spec] = [((share, *smaller), "uint8"), ((share, shapes.classes), "float32"), ((share,), "float32")]
    predict = (shapes.predict_batch // parts, *image)
    return {"train": [*train, ((row,), "float32")], "predict": [(predict, "float32")], "view": [(predict, "uint8")]}


def lowered(function: Callable[..., object], specs: Sequence[Spec]) -> bytes:
    """Serialized StableHLO of a TensorFlow function at these shapes; its variables become arguments.

    Raises CannotCompile for an operation that XLA cannot express.
    """
    import tensorflow as tf

    # In a lambda, because TensorFlow takes what a partial binds for arguments without a shape.
    step = tf.function(lambda *arguments: function(*arguments), jit_compile=True, autograph=False)
    try:
        get_ir = step.experimental_get_compiler_ir(*(tf.TensorSpec(shape, dtype) for shape, dtype in specs))
        program = get_ir(stage="stablehlo_serialized")
    except UserError:
        raise
    except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
        raise CannotCompile(str(error)) from None
    return bytes(program)
