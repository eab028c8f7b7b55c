"""JAX: milliseconds per step to hand a state to eight devices, as hundreds of arrays and as a few flat vectors.

    python -m benchmarks.dispatch                # 2,050 arrays, as an EfficientNetB6 with its AdamW moments has

The program adds a number to every array, so its time is the time of the call: checking, donating and handing out the
buffers. Eight logical CPU devices stand for the cores of a TPU; the work is on the host in both cases.
"""

import argparse
import os
import time
from typing import Any

import numpy as np

DEVICES, ROUNDS, STEPS = 8, 7, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrays", type=int, default=2050)
    arrays = parser.parse_args().arrays
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    assert len(jax.devices("cpu")) == DEVICES
    mesh = jax.sharding.Mesh(jax.devices("cpu")[:DEVICES], ("batch",))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def state(count: int) -> dict[str, Any]:
        return {f"{n:04}": jax.device_put(np.zeros(arrays // count + 1, np.float32), replicated) for n in range(count)}

    step = jax.jit(
        lambda state, row: {name: x + row[0] for name, x in state.items()}, donate_argnums=0, out_shardings=replicated
    )

    def milliseconds(count: int) -> list[float]:
        """Of one step, per round."""
        current, rounds = state(count), []
        row = jax.device_put(np.zeros(200, np.float32), replicated)
        for _ in range(ROUNDS + 1):
            started = time.perf_counter()
            for _ in range(STEPS):
                current = step(current, row)
            jax.block_until_ready(current)
            rounds.append((time.perf_counter() - started) / STEPS * 1000)
        return rounds[1:]

    def put(value: Any) -> float:
        started = time.perf_counter()
        for _ in range(STEPS):
            jax.block_until_ready(jax.device_put(value, replicated))
        return (time.perf_counter() - started) / STEPS * 1000

    many, few = milliseconds(arrays), milliseconds(3)
    rows = [put(np.zeros(200, np.float32)) for _ in range(ROUNDS)]
    print(
        f"SPEED: JAX hands {arrays:,} arrays to {DEVICES} devices in {np.median(many):.1f} ms per step ({min(many):.1f} to "
        f"{max(many):.1f}), three flat vectors in {np.median(few):.2f} ms ({min(few):.2f} to {max(few):.2f}): a ratio of "
        f"{np.median(many) / np.median(few):.0f}; a row of the step table {np.median(rows):.2f} ms; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
