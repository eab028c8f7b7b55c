"""What one client may ask of the server. Beyond a limit it gets an error with the limit in it; the server goes on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 32_000_000  # of one request
    image_bytes: int = 16_000_000  # of one encoded image
    image_pixels: int = 50_000_000  # of one image; checked in the header, before its pixels are decoded
    instances: int = 128  # images of one request
    waiting: int = 512  # images that wait for the model; beyond, a request gets 503
    batch: int = 32  # images predicted at once
    header_seconds: float = 10.0  # until the header of a request is complete
    body_seconds: float = 20.0  # until its body is complete
    request_seconds: float = 60.0  # until its answer is sent
    stop_seconds: float = 10.0  # that running requests get after SIGTERM
    connections: int = 1_500  # open at once; later ones are closed at once
