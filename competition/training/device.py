"""Choose the Keras backend before Keras is imported; open the devices; fit precision and batches to them. Each choice has its reason."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from competition.config.errors import UserError, how_to_install
from competition.config.params import CloudTpu, DeviceParams

TPU_FILES = ("/dev/accel0", "/dev/vfio/0")
GPU_FILE = "/dev/nvidia0"
JAX_FOR_TPU, JAX_FOR_GPU = ["libtpu"], ["jax-cuda13-plugin", "jax-cuda12-plugin"]
TPU_SIGNS = ("ISTPUVM", "TPU_ACCELERATOR_TYPE")  # environment variables of Kaggle's and Cloud TPU machines
SPLIT_CPU = "the CPU split into {} logical devices (device.logical_devices)"  # the reason of a Device


@dataclass(frozen=True)
class Device:
    kind: str  # tpu | gpu | cpu
    replicas: int  # on all hosts
    strategy: Any  # tensorflow: tf.distribute.Strategy; jax: jax.sharding.Mesh with the one axis "batch"
    reason: str
    backend: str  # tensorflow | jax
    capability: tuple[int, int] = (0, 0)  # lowest compute capability of its NVIDIA GPUs; (0, 0): none, or unknown
    threads: int = 0  # of the host, for training batches; 0 = the CPU cores of this process


Precision = Literal["auto", "float32", "bfloat16", "float16"]


def resolved_precision(setting: Precision, device: Device) -> Precision:
    """The precision of the activations: `train.precision`, or with auto the fastest that the device computes in.

    bfloat16 on TPU and on GPUs that have it (Ampere and later), float16 with loss scaling on those with tensor cores alone
    (Volta, Turing: a T4 has 65 Tflop/s in float16 and 8 in float32), else float32.
    """
    if setting != "auto":
        return setting
    if device.kind == "tpu" or (device.kind == "gpu" and device.capability >= (8, 0)):
        return "bfloat16"
    return "float16" if device.kind == "gpu" and device.capability >= (7, 0) else "float32"


def choose_backend(
    setting: str, environment: Mapping[str, str], exists: Callable[[str], bool], installed: Callable[[str], bool]
) -> tuple[str, str]:
    """(backend, reason) for device.backend `setting`. Set KERAS_BACKEND to it before Keras is imported.

    exists: whether a file exists.  installed: whether a Python distribution is installed.
    Kaggle's and Colab's TPU images give the TPU to JAX and contain a TensorFlow without TPU support.
    """
    if setting == "jax" and not installed("jax"):
        raise UserError(f"device.backend is jax, but JAX is not installed; {how_to_install('jax')}, or set it to auto")
    if setting != "auto":
        return setting, f"device.backend is {setting}"
    preset = environment.get("KERAS_BACKEND")
    if preset:
        if preset not in ("tensorflow", "jax"):
            raise UserError(f"KERAS_BACKEND is {preset}; set it to tensorflow or jax, or unset it")
        return preset, "KERAS_BACKEND is set"
    signs = [*filter(exists, TPU_FILES), *(key for key in TPU_SIGNS if key in environment)]
    if signs:
        cause, tensorflow, jax_plugins = f"a TPU is attached ({signs[0]})", "tensorflow-tpu", JAX_FOR_TPU
        remedy = "neither libtpu with jax, nor tensorflow-tpu"
    elif exists(GPU_FILE):
        cause, tensorflow, jax_plugins = f"an NVIDIA GPU is attached ({GPU_FILE})", "tensorflow", JAX_FOR_GPU
        remedy = '`make EXTRA=gpu`, or pip install "jax[cuda13]"'
    else:
        return "tensorflow", "neither a TPU nor an NVIDIA GPU is attached to this machine"
    if installed(tensorflow):
        return "tensorflow", f"{cause} and {tensorflow} is installed"
    if installed("jax") and any(map(installed, jax_plugins)):
        return "jax", f"{cause} and only JAX can use it: the package {tensorflow} is not installed"
    return "tensorflow", f"{cause}, but nothing that can use it is installed: {remedy}"


def open_device(params: DeviceParams, cache: Path | None = None) -> Device:
    """Open the TPU, else the GPUs, else the CPU, on the backend of Keras.

    cache: folder for compiled programs (JAX), so that the next process does not compile them again.
    Raises UserError if the device is below params.require.
    """
    import keras

    backend = keras.backend.backend()
    if params.backend not in ("auto", backend):
        raise UserError(
            f"device.backend is {params.backend}, but Keras was imported on {backend}; "
            f"set KERAS_BACKEND={params.backend} before, or device.backend: auto"
        )
    if backend == "jax":
        device = _jax(params.logical_devices, cache)
    else:
        import tensorflow as tf

        device = _tpu(tf, params.tpu) or _gpus(tf) or _cpu(tf, params.logical_devices)
    device = replace(device, threads=params.threads)
    order = ("cpu", "gpu", "tpu")
    if params.require != "any" and order.index(device.kind) < order.index(params.require):
        remedy = f"switch the accelerator on and install the packages for {params.require}, or set device.require: any"
        if params.require == "tpu" and backend == "tensorflow":
            remedy = "set device.backend: jax if libtpu is installed, or switch the TPU on, or set device.require: any"
        raise UserError(
            f"device.require is {params.require}, but on {backend} only a {device.kind} was found ({device.reason}); {remedy}"
        )
    return device


def host_share(device: Device, batch: int) -> np.ndarray:
    """(b,) ascending positions of the images in a global batch that this host feeds: those of its own devices."""
    if device.backend != "jax":
        return np.arange(batch)
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(device.strategy, PartitionSpec("batch"))
    parts = sharding.addressable_devices_indices_map((batch,)).values()
    return np.unique(np.concatenate([np.arange(batch)[part] for part in parts]))


def round_up_batch(batch: int, parts: int) -> int:
    """`batch` rounded up to a multiple of `parts`."""
    return -(-batch // parts) * parts


# Images of a prediction batch on a CPU: 16 of 224 px. Larger ones gain nothing, and the memory of their activations (of MobileNet's first
# layer 26 MB) would go back to the system after every operation, see backend.start_tensorflow.
CPU_BATCH_PIXELS = 16 * 224 * 224


def prediction_batch_size(batch: int, image_size: int, device: Device) -> int:
    """`batch`, on a CPU of at most CPU_BATCH_PIXELS pixels, rounded up to a multiple of the replicas."""
    if device.kind == "cpu":
        batch = min(batch, max(1, CPU_BATCH_PIXELS // image_size**2))
    return round_up_batch(batch, device.replicas)


def _tpu(tf: Any, cloud: CloudTpu) -> Device | None:
    # TPUClusterResolver("local") succeeds on machines without any TPU: only a listed device is one.
    name = cloud.name or os.environ.get("TPU_NAME", "")
    if not name and not any(Path(path).exists() for path in TPU_FILES):
        return None
    try:
        address = (name or "local", cloud.zone or None, cloud.project or None)
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(*address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        if cloud.name:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"device.tpu.name is {cloud.name}, which cannot be reached: {reason}") from None
        return None
    cores = tf.config.list_logical_devices("TPU")
    if not cores:
        return None
    strategy, reason = tf.distribute.TPUStrategy(resolver), f"TensorFlow lists {len(cores)} TPU cores"
    return Device("tpu", strategy.num_replicas_in_sync, strategy, reason, "tensorflow")


def _gpus(tf: Any) -> Device | None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if len(gpus) == 1:
        strategy, reason = tf.distribute.get_strategy(), "TensorFlow lists one GPU"
    else:
        strategy, reason = tf.distribute.MirroredStrategy(), f"TensorFlow lists {len(gpus)} GPUs"
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    capability = min(tuple(each.get("compute_capability") or (0, 0)) for each in details)
    return Device("gpu", len(gpus), strategy, reason, "tensorflow", capability)


def _cpu(tf: Any, logical: int) -> Device:
    # Deterministic on CPU, so that a resumed run ends with the same bits as an uninterrupted one.
    tf.config.experimental.enable_op_determinism()
    cpu = tf.config.list_physical_devices("CPU")[0]
    if logical <= 1:
        return Device("cpu", 1, tf.distribute.get_strategy(), "no TPU and no GPU was found", "tensorflow")
    parts = [tf.config.LogicalDeviceConfiguration()] * logical
    if (tf.config.get_logical_device_configuration(cpu) or []) != parts:
        try:
            tf.config.set_logical_device_configuration(cpu, parts)
        except RuntimeError:
            if len(tf.config.list_logical_devices("CPU")) < logical:
                raise
    names = [device.name for device in tf.config.list_logical_devices("CPU")[:logical]]
    # The default cross-device ops fail if strategy.run is called inside a TensorFlow loop.
    strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())
    return Device("cpu", logical, strategy, SPLIT_CPU.format(logical), "tensorflow")


def _jax(logical: int, cache: Path | None) -> Device:
    import jax
    import tensorflow as tf

    with suppress(RuntimeError):  # TensorFlow has already initialised its devices
        tf.config.set_visible_devices([], "GPU")  # it would take memory that JAX needs
    tf.config.experimental.enable_op_determinism()
    if logical > 1:
        try:
            jax.config.update("jax_num_cpu_devices", logical)
        except RuntimeError:
            if len(jax.devices()) < logical:  # JAX has already counted its devices
                raise
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache))
    if is_multi_host() and not jax.distributed.is_initialized():
        addresses: dict[str, Any] = {}
        if "JAX_NUM_PROCESSES" in os.environ:  # JAX itself detects a TPU pod and Slurm
            addresses["coordinator_address"] = os.environ["JAX_COORDINATOR_ADDRESS"]
            addresses["num_processes"] = int(os.environ["JAX_NUM_PROCESSES"])
            addresses["process_id"] = int(os.environ["JAX_PROCESS_ID"])
        jax.distributed.initialize(**addresses)
    kind = {"cpu": "cpu", "tpu": "tpu"}.get(jax.default_backend(), "gpu")
    devices = jax.devices()
    if kind == "cpu" and jax.process_count() == 1:
        devices = devices[: max(logical, 1)]
    mesh = jax.sharding.Mesh(devices, ("batch",))
    hosts = f" on {jax.process_count()} hosts" if jax.process_count() > 1 else ""
    reason = f"JAX lists {len(devices)} {devices[0].device_kind} devices{hosts}"
    if kind == "cpu" and not hosts:
        reason = SPLIT_CPU.format(logical) if logical > 1 else "JAX found no TPU and no GPU"
    versions = [str(getattr(each, "compute_capability", None) or "0.0") for each in devices]  # "7.5"
    capability = min(tuple(int(part) for part in version.split(".")[:2]) for version in versions)
    return Device(kind, len(devices), mesh, reason, "jax", (capability[0], capability[1]))


def is_multi_host() -> bool:
    """Return True if the environment says that this process is one of several hosts."""
    hosts = [host for host in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    return len(hosts) > 1 or "JAX_COORDINATOR_ADDRESS" in os.environ
