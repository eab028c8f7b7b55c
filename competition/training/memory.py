"""Memory that training takes, against what is left of it."""

from contextlib import suppress
from pathlib import Path

from competition.config.errors import UserError, counted
from competition.config.params import Member
from competition.input_pipeline.batch_threads import BATCHES_IN_MEMORY

PROCESS = 500_000_000  # bytes of Python, TensorFlow and a small network
# Copies of a training batch in float32, 4 bytes per value: as it is augmented, scaled and read by the first layer. Measured: 1.7 GB for
# batches of 128 images of 512 px, 3 of them in memory (`python -m benchmarks.dress_rehearsal flowers`).
FLOAT_COPIES = 3


def training_bytes(member: Member) -> int:
    """Bytes that training this member on a CPU takes without the network's activations; less where an accelerator computes."""
    batch = member.train.batch * member.image_size**2 * 3
    return PROCESS + batch * (BATCHES_IN_MEMORY + 1 + 4 * FLOAT_COPIES)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes of memory that are left to this process: of the machine, or less in a container with a limit; None = unknown.

    Source of the files: proc(5), cgroups(7).
    """
    try:  # files of lines `key number ...`
        machine = dict(line.split()[:2] for line in (root / "proc/meminfo").read_text().splitlines())
        left = [1024 * int(machine["MemAvailable:"])]
    except (OSError, ValueError, KeyError):
        return None
    with suppress(OSError, ValueError, KeyError):  # no container, or one without a limit ("max")
        limit = int((root / "sys/fs/cgroup/memory.max").read_text())
        used = dict(line.split() for line in (root / "sys/fs/cgroup/memory.stat").read_text().splitlines())
        left.append(limit - int(used["anon"]))
    return max(0, min(left))


def memory_warning(name: str, member: Member, available: int | None) -> str:
    """One sentence if the batches alone take more than is available; "" if not, or if that is unknown."""
    needed = training_bytes(member)
    if member.head is not None or available is None or needed <= available:
        return ""
    return (
        f"{name}: batches of {member.train.batch} images of {member.image_size} px take {needed / 1e9:.1f} GB of memory beside the "
        f"network, {available / 1e9:.1f} GB are available; lower train.batch or image_size"
    )


def too_large(name: str, member: Member) -> UserError:
    """The error for a member whose training exhausts the memory of the device."""
    batch, parts = member.train.batch, 2 * member.train.accumulate
    return UserError(
        f"{name}: a batch of {counted(batch, 'image')} of {member.image_size} px needs more memory than the device has; set "
        f"train.accumulate: {parts}, which keeps the batch and takes it in {parts} parts, lower train.batch or image_size, or set "
        "train.precision: bfloat16"
    )
