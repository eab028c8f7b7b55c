"""What to do about a step that does not run on a TPU."""

from competition.preflight.request import PreflightResult

INSTALL = "python -m pip install -c constraints.txt -e '.[preflight]'"

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


def remedy_for(result: PreflightResult) -> str:
    """One sentence; "" if the step would run."""
    if result.verdict == "too_big":
        return f"lower {result.step}.batch or the member's image_size, or set train.precision: bfloat16"
    if result.verdict == "unsupported":
        return next((REMEDIES[name] for name in result.operations if name in REMEDIES), REMEDIES[""])
    if result.verdict == "crashed":
        return f"jax and libtpu may be incompatible; install the pinned versions with `{INSTALL}`"
    return ""
