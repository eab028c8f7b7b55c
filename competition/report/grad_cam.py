"""Grad-CAM maps of wrong and right rows as pictures, and the report's section with those of `make grad-cam`."""

from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from PIL import ImageOps

from competition.ensemble.metrics import TargetKind
from competition.files.manifest import Manifest, read_manifest
from competition.report.classes import most_confident_errors
from competition.report.page import Block, Image, Section, Text
from competition.report.pictures import TILE, sheet_uri

SHEET, MANIFEST = "grad_cam.png", "grad_cam.json"
WRONG, RIGHT = 12, 12
CIVIDIS = ("#00224e", "#fee838", "#7c7b78")  # lowest, highest and middle colour, which colour-blind people see as well


def chosen_rows(labels: np.ndarray, predicted: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Row numbers of the most confident errors, then of as many right rows, one for each predicted class in turn.

    labels, predicted: (N,) int.  scores: (N, C).
    """
    wrong = most_confident_errors(labels, predicted, scores, WRONG)
    right = np.flatnonzero(labels == predicted)
    right = right[np.argsort(-scores[right, predicted[right]], kind="stable")]
    # The classes of the errors first: their right rows show what the network looks at when it is right.
    classes = list(dict.fromkeys([*labels[wrong].tolist(), *predicted[wrong].tolist(), *labels[right].tolist()]))
    firsts = [right[labels[right] == c][:1] for c in classes[:RIGHT]]
    return np.concatenate([wrong, *firsts]).astype(int)


def grad_cam_section(work: Path, kind: TargetKind, blend: Manifest | None, has_networks: bool) -> Section | None:
    """The contact sheet of `make grad-cam`, or one sentence on why there is none; None if there can be none.

    has_networks: some member is trained here.
    """
    manifest, sheet = read_manifest(work / MANIFEST), work / SHEET
    if kind != "single" or not has_networks:  # no single class that something could speak for, or no network
        return None
    block: Block
    if manifest is None or blend is None or not sheet.is_file():
        command = "make grad-cam report" if blend is not None else "make train predict grad-cam report"
        block = Text([f"`{command}` shows what the network looks at in wrong and in right rows."])
    elif manifest.depends.get("blend") != blend.digest:
        block = Text(["`make grad-cam` was run for an earlier blend; run it again."], True)
    else:
        method, bright = manifest.result["method"], "speaks for the class"
        if method == "Occlusion":
            bright = "the logit of the class falls when this part is covered"
        caption = (
            f"{method} by the fold models of {manifest.result['run']} that did not train on the row. Bright: {bright}. Wrong rows, the "
            "most confident first, are shown twice: what speaks for the predicted class, and what speaks for the label. Then right "
            "rows of the same classes."
        )
        block = Image(sheet_uri(sheet), caption)
    return Section("gradcam", "What the network looks at", f"{SHEET} · make grad-cam", [block])


def overlay(pixels: np.ndarray, one_map: np.ndarray) -> np.ndarray:
    """(TILE, TILE, 3) uint8: the image in grey with its map in the colours of cividis.

    pixels: (H, W, 3) uint8.  one_map: (h, w) in 0..1.
    """
    size = (TILE, TILE)
    resampling = Pillow.Resampling.NEAREST if len(pixels) < 64 else Pillow.Resampling.BICUBIC
    grey = np.asarray(Pillow.fromarray(pixels).convert("L").resize(size, resampling), np.float32)[..., None] / 255
    heat = Pillow.fromarray((np.clip(one_map, 0, 1) * 255).astype(np.uint8)).resize(size, Pillow.Resampling.BICUBIC)
    strength = np.asarray(heat, np.float32)[..., None] / 255
    colour = np.asarray(ImageOps.colorize(heat, *CIVIDIS), np.float32) / 255
    mixed = grey * (1 - 0.6 * strength) + colour * 0.6 * strength
    return (np.clip(mixed, 0, 1) * 255).astype(np.uint8)
