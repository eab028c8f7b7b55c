"""The model card: README.md of an export, for whoever gets the folder without this project."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from competition.data.prepared import Prepared
from competition.serving.bundle import FILES, Bundle
from competition.serving.parity import Check
from competition.serving.selection import Selection


@dataclass(frozen=True)
class CardFacts:
    """score: one sentence.  stored: largest difference from the stored predictions, or None if there are none to compare."""

    score: str
    checks: Sequence[Check]
    stored: float | None
    sampled: int  # images on which the formats were compared
    versions: Mapping[str, str]
    commit: str


def model_card(bundle: Bundle, selection: Selection, prepared: Prepared, facts: CardFacts) -> str:
    """The text of README.md, in Markdown."""
    sections = [
        _head(bundle, prepared),
        _score(facts),
        _use(bundle, prepared),
        _members(selection),
        _files(bundle, facts),
        _requests(bundle),
        _provenance(bundle, prepared, facts),
    ]
    return "\n".join(sections)


def _head(bundle: Bundle, prepared: Prepared) -> str:
    train = prepared.part("train")
    return f"""# {bundle.competition}: {bundle.title}

Image classifier of {len(bundle.classes)} classes (classes.txt, one name per line, in class order), trained on
{len(train):,} images of the competition {bundle.competition}.
"""


def _score(facts: CardFacts) -> str:
    return f"## Score\n\n{facts.score}\n"


def _use(bundle: Bundle, prepared: Prepared) -> str:
    fit = {"squash": "resized to a square, which changes the aspect ratio", "crop": "cropped to the central square"}
    counts = prepared.part("train")["label"].value_counts()
    return f"""## Intended use and limits

- Made for images like those of the competition. The score holds for images drawn from the same source; other cameras,
  backgrounds or resolutions can lower it without any sign in the probabilities.
- Every image gets one of the {len(bundle.classes)} classes, also an image that shows none of them. There is no class "other".
- Training rows per class: {int(counts.min()):,} to {int(counts.max()):,}. Classes with few rows are recognised less reliably.
- Probabilities were fitted on this data; use them as a ranking unless calibration was checked on your own images.
- Not made for decisions about people, health or safety.
- An image is {fit[bundle.fit]}, at {" and ".join(f"{size} x {size}" for size in bundle.sizes)} pixels.
"""


def _members(selection: Selection) -> str:
    chain = selection.chain
    lines = [
        "## Models",
        "",
        "| member | architecture | pixels | weight | views | temperature | fold models |",
        "|---|" + "---|" * 6,
    ]
    for name, member in selection.members.items():
        views = ", ".join(f"{view} {weight:.3g}" for view, weight in chain.policies[name].items())
        folds = ", ".join(selection.digests[name])
        lines.append(
            f"| {name} | {member.architecture} | {member.image_size} | {chain.blend.weights[name]:.3g} | {views} | "
            f"{chain.temperatures[name]:.3g} | {folds} |"
        )
    rule = chain.decision.rule
    lines += [
        "",
        f"Fold models are averaged, views mixed by {chain.view_mixing}, members by {chain.blend.mixing} ({chain.blend.method}).",
        f"Decision rule: {rule}"
        + (". class_id is not always the class of the largest probability." if rule != "argmax" else "."),
        "",
    ]
    return "\n".join(lines)


def _files(bundle: Bundle, facts: CardFacts) -> str:
    lines = [
        "## Files",
        "",
        "| file | MB | load, s | one image, ms | largest difference of a probability | labels changed |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {FILES[c.format]} | {c.megabytes:g} | {c.load_seconds:g} | {c.milliseconds:g} | {c.difference:.1e} | {c.changed} |"
        for c in facts.checks
    ]
    lines += [
        "",
        f"Differences are from {FILES[bundle.formats[0]]} fed with Pillow's pixels, on {facts.sampled} test images; times from one run on",
        "the exporting machine, decoding included.",
    ]
    if facts.stored is not None:
        lines.append(
            f"From the predictions behind the submission it differs by at most {facts.stored:.1e}: those round each view to float16."
        )
    return "\n".join([*lines, ""])


def _requests(bundle: Bundle) -> str:
    sizes = ", ".join(f"`images_{size}` uint8 (B, {size}, {size}, 3)" for size in bundle.sizes)
    return f"""## Signatures

Every signature returns `probabilities` float32 (B, {len(bundle.classes)}) and `class_id` int64 (B,); those of the SavedModel
also `class_name` string (B,).

| signature | input |
|---|---|
| serving_default (SavedModel) | `image_bytes` string (B,): JPEG or PNG files |
| images (SavedModel) | `images` uint8 (B, H, W, 3): decoded RGB images of any one size, resized in the graph |
| pixels (SavedModel), model.onnx, model.tflite | {sizes}: decoded and resized by the caller, as Pillow does |

`serving_default` decodes and resizes with Pillow's arithmetic and gives the same pixels. It refuses what TensorFlow reads
differently, with an error for the whole batch: JPEGs with an Exif orientation other than 1, CMYK JPEGs, PNGs with 16 bits, palette,
transparency or Exif data, and every other format (WEBP, GIF, BMP). Convert those to upright 8-bit RGB first. An orientation that is
stored in XMP only is not seen.

    import tensorflow as tf
    model = tf.saved_model.load("saved_model")
    model.signatures["serving_default"](image_bytes=tf.constant([open("photo.jpg", "rb").read()]))
"""


def _provenance(bundle: Bundle, prepared: Prepared, facts: CardFacts) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    return f"""## Provenance

- data (ids, labels, folds, image bytes; competition): {prepared.digest}
- chain and weights: {bundle.digest}
- code: {facts.commit or "unknown commit"}; {versions}
- digests of all files and of each fold model: manifest.json
"""


def score_sentence(selection: Selection, blend: Mapping[str, Any] | None) -> str:
    """The honest score of what is exported, with its standard error.  blend: result of the blend's manifest."""
    if blend is None:
        return "No score: the export was made before `make predict` computed one."
    metric = blend["metric"]
    if selection.is_blend:
        kind = "Optimistic (every row chose hyperparameters)" if blend["optimistic"] else "Honest"
        return (
            f"{kind} {metric}: {blend['honest']:.4f} ± {blend['standard_error']:.4f} (one standard error), on "
            f"{blend['honest_rows']:,} out-of-fold rows that took no part in what they score."
        )
    (name,) = selection.members
    score = blend["members"].get(name)
    if score is None:
        return f"No score: the last blend did not contain {name}."
    return (
        f"Out-of-fold {metric} of {name} under the identity view: {score['score']:.4f} ± {score['standard_error']:.4f} (one "
        "standard error). It is the score of single fold models; their mean, exported here, is usually better. Views and "
        "temperature are those fitted for the blend; they are not part of this score."
    )
