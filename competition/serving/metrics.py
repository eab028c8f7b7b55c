"""Prometheus metrics of one server, in a registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """requests: by route and status.  seconds: of a request, by route.  batches: images per call of the model."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("goldfold_requests", "Requests answered", ["route", "status"], registry=self._registry)
        self.seconds = Histogram(
            "goldfold_request_seconds", "Seconds until the answer", ["route"], buckets=SECONDS, registry=self._registry
        )
        self.batches = Histogram(
            "goldfold_batch_images", "Images per call of the model", buckets=SIZES, registry=self._registry
        )
        self.model_seconds = Histogram(
            "goldfold_model_seconds", "Seconds of one call of the model", buckets=SECONDS, registry=self._registry
        )
        self.waiting = Gauge("goldfold_waiting_images", "Images that wait for the model", registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)
