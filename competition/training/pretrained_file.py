"""A pretrained network from a file: a Keras model (.keras) or a KerasHub preset (a folder), local or on gs://.

Nothing is unpickled: a .keras file is JSON and HDF5, loaded in safe mode; so is a preset.
"""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import keras

from competition.config.errors import UserError
from competition.storage import files

NORMALISATIONS: dict[str, tuple[Any, Any]] = {  # name -> scale and offset of pixels 0..255
    "none": (1.0, 0.0),
    "0..1": (1 / 255, 0.0),
    "-1..1": (1 / 127.5, -1.0),
    "imagenet": ([1 / 58.395, 1 / 57.12, 1 / 57.375], [-123.675 / 58.395, -116.28 / 57.12, -103.53 / 57.375]),
    "bgr": (1.0, [-103.939, -116.779, -123.68]),
}
HEADS = ("predictions", "logits", "head", "classifier", "probs")  # names of last layers that give classes
ALWAYS_CLASS_TOKEN = ("DeiT", "DINO")  # backbones of KerasHub whose first token stands for the image
# Earlier ones can be made to run code or read files by a hostile model file; see docs/security.md.
PATCHED_KERAS = (3, 15, 1)
INSTALL = "python -m pip install -c constraints.txt -e '.[hub]'"


def backbone_from_file(images: Any, weights: str, normalise: str, precision: str) -> Any:
    """Features of `images` by the network in `weights`.

    images: Keras tensor (B, H, W, 3) of 0..255.  normalise: auto, or a key of NORMALISATIONS.  precision: float32 |
    bfloat16 | float16.  Returns (B, h, w, F), (B, F), or the mean or the class token of (B, T, F).
    Raises UserError if the file is missing, is of another kind or has another image size.
    """
    is_file = weights.endswith(".keras")
    if "://" not in weights and not (Path(weights).is_file() if is_file else (Path(weights) / "config.json").is_file()):
        raise UserError(
            f"weights {weights!r}: expected a .keras file, or the folder of a KerasHub preset with config.json; on Kaggle, "
            "attach the model and state its folder below /kaggle/input"
        )
    if _version(keras.__version__) < PATCHED_KERAS:
        raise UserError(
            f"weights {weights!r}: this file of a whole network would be loaded by Keras {keras.__version__}, which a hostile "
            f"file can make run code; Keras {'.'.join(map(str, PATCHED_KERAS))} is expected: "
            "`python -m pip install 'keras>=3.15.1'`, or use weights that are loaded alone (imagenet, .weights.h5)"
        )
    model, (scale, offset) = (_keras_file if is_file else _preset)(weights, normalise)
    if precision not in ("auto", "float32"):
        for layer in model._flatten_layers():
            if not isinstance(layer, keras.Model) and layer.compute_dtype == "float32":
                layer.dtype_policy = keras.DTypePolicy(f"mixed_{precision}")
    if normalise == "bgr":
        images = keras.ops.flip(images, axis=-1)
    if (scale, offset) != NORMALISATIONS["none"]:
        images = keras.layers.Rescaling(scale, offset=offset)(images)
    expected, received = tuple(model.inputs[0].shape[1:]), tuple(images.shape[1:])
    if any(side is not None and side != other for side, other in zip(expected, received, strict=True)):
        advice = (
            "set train.low_resolution_epochs: 0 and train_size: 0"
            if None in received
            else f"set image_size: {expected[0]}"
        )
        raise UserError(f"weights {weights!r}: its network takes images of {expected}, found {received}; {advice}")
    features = model(images)
    if len(features.shape) != 3:
        return features
    has_class_token = getattr(model, "use_class_token", type(model).__name__.startswith(ALWAYS_CLASS_TOKEN))
    return features[:, 0] if has_class_token else features


def _version(text: str) -> tuple[int, ...]:
    """The numbers of a version, without a suffix such as rc0."""
    return tuple(int(re.sub(r"\D.*", "", part) or 0) for part in text.split("."))


def _keras_file(path: str, normalise: str) -> tuple[keras.Model, tuple[Any, Any]]:
    """The model without its last layer if that gives classes, and its normalisation."""
    try:
        with files.local_copy(path) as file:
            _import_keras_hub(file, path)
            model = keras.models.load_model(file, compile=False, safe_mode=True)
    except (ValueError, TypeError, OSError, KeyError, ImportError) as error:
        raise UserError(
            f"weights {path!r}: {' '.join(str(error).split())[:300]}; expected a model saved by model.save('name.keras') "
            "that consists of layers of Keras or KerasHub"
        ) from None
    if not isinstance(model, keras.Model) or len(model.inputs or ()) != 1 or len(model.outputs) != 1:
        raise UserError(f"weights {path!r}: a model with one input of images and one output was expected")
    last = model.layers[-1]
    activation = getattr(getattr(last, "activation", None), "__name__", "")
    if len(model.outputs[0].shape) == 2 and (activation in ("softmax", "sigmoid") or last.name in HEADS):
        model = keras.Model(model.inputs, last.input)
    if normalise != "auto":
        return model, NORMALISATIONS[normalise]
    kinds = (keras.layers.Rescaling, keras.layers.Normalization)
    if not any(isinstance(layer, kinds) for layer in model._flatten_layers()):
        names = ", ".join(NORMALISATIONS)
        raise UserError(
            f"weights {path!r}: the model does not normalise pixels itself, so state how it was trained: "
            f"`normalise: ...` of the member, one of {names}"
        )
    return model, NORMALISATIONS["none"]


def _import_keras_hub(file: str, path: str) -> None:
    """Import KerasHub if the model has layers of it, which registers them."""
    if not zipfile.is_zipfile(file):
        raise ValueError("not a .keras file")
    with zipfile.ZipFile(file) as archive:
        if b"keras_hub" in archive.read("config.json"):
            _keras_hub(path)


def _keras_hub(path: str) -> Any:
    try:
        import keras_hub
    except ImportError as error:
        raise UserError(
            f"weights {path!r} need the package keras-hub ({error}); install it with `{INSTALL}` (docs/plugins.md)"
        ) from None
    return keras_hub


def _preset(path: str, normalise: str) -> tuple[keras.Model, tuple[Any, Any]]:
    """The backbone of a KerasHub preset and the normalisation of its image converter."""
    keras_hub = _keras_hub(path)
    try:
        options = {"drop_path": 0.0} if b"SwinTransformerBackbone" in files.read_bytes(f"{path}/config.json") else {}
        model = keras_hub.models.Backbone.from_preset(path, **options)  # the drop path of its Swin fails in training
    except (ValueError, TypeError, OSError, KeyError) as error:
        raise UserError(f"weights {path!r}: {' '.join(str(error).split())[:300]}; expected a KerasHub preset") from None
    if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4 or isinstance(model.output, dict):
        raise UserError(f"weights {path!r}: {type(model).__name__} is no backbone of images")
    return model, _converter_normalisation(path) if normalise == "auto" else NORMALISATIONS[normalise]


def _converter_normalisation(path: str) -> tuple[Any, Any]:
    """Scale and offset in the preset's image_converter.json, of which the object itself would need tensorflow-text."""
    file = f"{path.rstrip('/')}/image_converter.json"
    try:
        if "://" not in file and not Path(file).is_file():
            raise ValueError("there is no image_converter.json")
        config = json.loads(files.read_bytes(file))["config"]
    except (UserError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"weights {path!r}: the preset states no normalisation ({str(error)[:200]}); state `normalise: ...` of the "
            f"member, one of {', '.join(NORMALISATIONS)}"
        ) from None
    scale, offset = config.get("scale"), config.get("offset")
    return (1.0 if scale is None else scale), (0.0 if offset is None else offset)
