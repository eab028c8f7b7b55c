"""Requests per second, latency and memory of the server against a bare call of the model in the same run.

python -m benchmarks.serving [--export work/digits/export/blend] [--requests 500] [--clients 4] [--engine onnx]

Without --export a MobileNetV2 with random weights is exported first (96 pixels, 100 classes). Server and clients share this
machine; the clients send raw bytes over persistent connections and do nothing else.

bare: `engine.prepare` on as many threads as the server has, then `engine.run`, on batches of 32 images, in this process.
batch 32: requests of 32 images each, by two clients, so that one request is decoded while another is predicted. Target: 0.8 of bare.
single: requests of one image, by `--clients` clients. memory: of the server, before and after these requests.
"""

import argparse
import base64
import http.client
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from competition.serving.engines import Engine, open_engine

ROOT = Path(__file__).resolve().parents[1]
PREDICT = "/v1/models/goldfold:predict"
BATCH = 32
SERVER = """
import sys
from pathlib import Path
from competition.serving.app import create_app
from competition.serving.engines import open_engine
from competition.serving.limits import Limits
from competition.serving.server import listen, run_server

listener = listen("127.0.0.1:0")
app = create_app(open_engine(sys.argv[2], Path(sys.argv[1])), Limits(), lambda: None, True)
print(listener.getsockname()[1], flush=True)
run_server(app, listener, Limits())
"""
EXPORT = """
import os, sys
os.environ["KERAS_BACKEND"] = "tensorflow"
from dataclasses import replace
from pathlib import Path
from competition.files.manifest import write_manifest
from competition.config.params_file import load_params
from competition.ensemble.blend import Blend
from competition.ensemble.chain import Chain
from competition.ensemble.decision import ARGMAX
from competition.serving.bundle import Bundle
from competition.serving.graph import ExportedChain
from competition.serving.selection import Selection
from competition.serving.writing import write_formats
from competition.training.checkpoint import save_arrays
from competition.training.engine import saved_variables
from competition.training.model import build

folder, root, formats = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(",")
member = replace(load_params(root / "params.yaml").members["small"], architecture="MobileNetV2", image_size=96, alpha=1.0)
classes = [f"class {n}" for n in range(100)]
weights = folder.parent / "weights.npz"
save_arrays(weights, {name: v.numpy() for name, v in saved_variables(build(member, len(classes)))})
blend = Blend("best", "mean", {"m": 1.0}, ())
chain = Chain("accuracy", {"m": {"identity": 1.0}}, "mean", {"m": 1.0}, blend, ARGMAX)
selection = Selection("m", "benchmark", chain, {"m": member}, {"m": {0: weights}}, {}, False)
folder.mkdir(parents=True)
write_formats(ExportedChain(selection, classes, "squash"), selection, folder, formats)
bundle = Bundle("benchmark", "benchmark", "", "", tuple(classes), (96,), "squash", tuple(formats))
write_manifest(folder / "manifest.json", {}, bundle.save(folder), {}, {})
"""


def photos(count: int = 64) -> list[bytes]:
    """JPEGs of 200 x 160 pixels: smooth noise, about 10 kB each."""
    rng, images = np.random.default_rng(0), []
    for _ in range(count):
        small = Image.fromarray(rng.integers(0, 256, (20, 25, 3)).astype(np.uint8))
        out = io.BytesIO()
        small.resize((200, 160), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        images.append(out.getvalue())
    return images


def bare_rate(engine: Engine, images: list[bytes], seconds: float) -> float:
    """Images per second of decoding and predicting batches of BATCH, the next one decoded while one is predicted."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def decoded() -> list[object]:
            return [pool.submit(engine.prepare, image) for image in images[:BATCH]]

        done, waiting = 0, decoded()
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            batch, waiting = [future.result() for future in waiting], decoded()
            engine.run(batch)
            done += BATCH
        return done / (time.perf_counter() - started)


def body_of(images: list[bytes]) -> bytes:
    return json.dumps({"instances": [{"b64": base64.b64encode(image).decode()} for image in images]}).encode()


def send_all(port: int, bodies: Callable[[int], bytes], requests: int, clients: int) -> tuple[float, np.ndarray]:
    """(wall seconds, (requests,) seconds of each) of requests by several clients, each over one connection."""

    def client(first: int) -> list[float]:
        connection, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=120), []
        for number in range(first, requests, clients):
            body, started = bodies(number), time.perf_counter()
            connection.request("POST", PREDICT, body)
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer[:200]
            seconds.append(time.perf_counter() - started)
        return seconds

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        results = list(pool.map(client, range(clients)))
    return time.perf_counter() - started, np.concatenate(results)


def resident_megabytes(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1e3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--export", type=Path)
    options.add_argument("--engine", default="onnx", choices=("onnx", "saved_model", "litert"))
    options.add_argument("--requests", type=int, default=500)
    options.add_argument("--clients", type=int, default=4)
    options.add_argument(
        "--seconds", type=float, default=5.0, help="of each of the interleaved measurements at batch 32"
    )
    given, environment = options.parse_args(), {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.export
        if folder is None:
            folder = Path(temporary) / "export"
            command = [sys.executable, "-c", EXPORT, str(folder), str(ROOT), given.engine]
            subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
        command = [sys.executable, "-c", SERVER, str(folder.resolve()), given.engine]
        started = time.perf_counter()
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port, images = int(server.stdout.readline()), photos()
            send_all(port, lambda _: body_of(images[:1]), 1, 1)
            print(f"{given.engine}: answers after {time.perf_counter() - started:.1f} s", flush=True)
            measure_batches(port, open_engine(given.engine, folder), images, given.seconds)
            measure_single(port, server.pid, images, given.requests, given.clients)
            server.terminate()
            assert server.wait(30) == 0
        finally:
            server.kill()


def measure_batches(port: int, engine: Engine, images: list[bytes], seconds: float) -> None:
    """Print images per second of requests of BATCH images, as a ratio to the bare model."""
    body, bare, served = body_of(images[:BATCH]), [], []
    bare_rate(engine, images, 1.0)
    for _ in range(3):  # interleaved, because other work on the machine changes its speed
        bare.append(bare_rate(engine, images, seconds))
        count = max(4, round(bare[-1] * seconds / BATCH))
        served.append(BATCH * count / send_all(port, lambda _: body, count, 2)[0])
    ratios = np.array(served) / np.array(bare)
    print(
        f"batch {BATCH}: bare {np.median(bare):.0f} images/s, served {np.median(served):.0f}; ratio {np.median(ratios):.2f} "
        f"({', '.join(f'{ratio:.2f}' for ratio in ratios)}), target 0.8",
        flush=True,
    )


def measure_single(port: int, process: int, images: list[bytes], requests: int, clients: int) -> None:
    """Print requests per second, latency and memory for requests of one image."""
    bodies = [body_of([image]) for image in images]
    before = resident_megabytes(process)
    for together, count in ((1, min(requests, 200)), (clients, requests)):
        wall, seconds = send_all(port, lambda n: bodies[n % len(bodies)], count, together)
        p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
        print(
            f"{count} single, {together} clients: {count / wall:.0f}/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True
        )
    print(f"memory: {before:.0f} MB before these requests, {resident_megabytes(process):.0f} MB after them")


if __name__ == "__main__":
    main()
