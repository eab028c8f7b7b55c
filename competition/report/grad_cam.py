"""The report's section with Grad-CAM maps of wrong and right rows, from the files of `make grad-cam`."""

from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from PIL import ImageOps

from competition.ensemble.predictions import positions
from competition.files.manifest import Manifest, read_manifest
from competition.input_pipeline.decoded_cache import Pixels
from competition.prepare.prepared import Prepared
from competition.report.classes import most_confident_errors
from competition.report.page import Block, Section, Sheet, Text, Tile
from competition.report.pictures import NO_PICTURES, data_uri

FILE, MANIFEST = "grad_cam.npz", "grad_cam.json"
WRONG, RIGHT = 12, 12
CIVIDIS = ("#00224e", "#fee838", "#7c7b78")  # lowest, highest and middle colour, which colour-blind people see as well
SIZE = 160  # pixels of a picture with its map


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


def grad_cam_section(
    work: Path, prepared: Prepared, blend: Manifest | None, pixels: Pixels | None, has_networks: bool
) -> Section | None:
    """The maps of `make grad-cam`, or one sentence on why there are none; None if there can be none.

    pixels: (N, H, W, 3) uint8 of the training rows in index order.  has_networks: some member is trained here.
    """
    manifest, kind = read_manifest(work / MANIFEST), prepared.competition.targets.kind
    blocks: list[Block]
    if kind != "single" or not has_networks:  # no single class that something could speak for, or no network
        return None
    if manifest is None or blend is None or not (work / FILE).is_file():
        command = "make grad-cam report" if blend is not None else "make train predict grad-cam report"
        blocks = [Text([f"`{command}` shows what the network looks at in wrong and in right rows."])]
    elif manifest.depends.get("blend") != blend.digest:
        blocks = [Text(["`make grad-cam` was run for an earlier blend; run it again."], True)]
    elif pixels is None:
        blocks = [Text([NO_PICTURES])]
    else:
        with np.load(work / FILE) as arrays:
            ids, classes, maps = arrays["ids"], arrays["classes"], arrays["maps"].astype(np.float32)
        train, names = prepared.part("train"), prepared.competition.classes
        rows = positions(train["id"].to_numpy(str), ids)
        labels = train["label"].to_numpy(int)[rows]
        first_place = {name: n for n, name in reversed(list(enumerate(ids)))}
        tiles: dict[bool, list[Tile]] = {True: [], False: []}
        for n in sorted(range(len(ids)), key=lambda n: (first_place[ids[n]], n)):
            is_label, is_wrong_row = classes[n] == labels[n], (ids == ids[n]).sum() > 1
            picture = overlay(pixels[rows[n : n + 1]][0], maps[n])
            lines = [f"for {names[classes[n]]}{'' if is_label else ' ✕'}", f"is {names[labels[n]]}", str(ids[n])]
            tiles[is_wrong_row].append(Tile(data_uri(picture, SIZE)[0], False, lines))
        method, bright = manifest.result.get("method", "Grad-CAM"), "speaks for the class"
        if method == "Occlusion":
            bright = "the logit of the class falls when this part is covered"
        run = manifest.result["run"]
        note = f"{method} by the fold models of {run} that did not train on the row. Bright: {bright}."
        if tiles[True]:
            note += " A wrong row is shown twice: what speaks for the predicted class (✕), and what speaks for its own."
        titles = ((True, "The most confident errors"), (False, "Right rows, those of the same classes first"))
        blocks = [Text([note])]
        blocks += [Sheet(tiles[is_wrong], name=title) for is_wrong, title in titles if tiles[is_wrong]]
    return Section("gradcam", "What the network looks at", f"{FILE} · make grad-cam", blocks)


def overlay(pixels: np.ndarray, one_map: np.ndarray) -> np.ndarray:
    """(S, S, 3) uint8: the image in grey with its map in the colours of cividis.

    pixels: (H, W, 3) uint8.  one_map: (h, w) in 0..1.
    """
    size = (SIZE, SIZE)
    resampling = Pillow.Resampling.NEAREST if len(pixels) < 64 else Pillow.Resampling.BICUBIC
    grey = np.asarray(Pillow.fromarray(pixels).convert("L").resize(size, resampling), np.float32)[..., None] / 255
    heat = Pillow.fromarray((np.clip(one_map, 0, 1) * 255).astype(np.uint8)).resize(size, Pillow.Resampling.BICUBIC)
    strength = np.asarray(heat, np.float32)[..., None] / 255
    colour = np.asarray(ImageOps.colorize(heat, *CIVIDIS), np.float32) / 255
    mixed = grey * (1 - 0.6 * strength) + colour * 0.6 * strength
    return (np.clip(mixed, 0, 1) * 255).astype(np.uint8)
