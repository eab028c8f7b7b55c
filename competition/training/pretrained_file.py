"""A pretrained network from a file: a Keras model (.keras) or a KerasHub preset (a folder or its name), local or on gs://.

Nothing is unpickled: a .keras file is JSON and HDF5, loaded in safe mode; so is a preset.
"""

import json
import math
import re
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from competition.config.errors import UserError, did_you_mean, needed_for
from competition.config.params import HUB
from competition.storage import files
from competition.training.backend import Tensor

# Scale and offset of pixels 0..255, of all channels or of each.
Scaling = tuple[float | list[float], float | list[float]]
NORMALISATIONS: dict[str, Scaling] = {
    "none": (1.0, 0.0),
    "0..1": (1 / 255, 0.0),
    "-1..1": (1 / 127.5, -1.0),
    "imagenet": ([1 / 58.395, 1 / 57.12, 1 / 57.375], [-123.675 / 58.395, -116.28 / 57.12, -103.53 / 57.375]),
    "bgr": (1.0, [-103.939, -116.779, -123.68]),
}
HEADS = ("predictions", "logits", "head", "classifier", "probs")  # names of last layers that give classes
ALWAYS_CLASS_TOKEN = ("DeiT", "DINO", "CLIP")  # backbones of KerasHub whose first token stands for the image
# Earlier ones can be made to run code or read files by a hostile model file; see docs/security.md.
PATCHED_KERAS = (3, 15, 1)


def backbone_from_file(images: Tensor, weights: str, normalise: str, precision: str) -> Tensor:
    """Features of `images` by the network in `weights`.

    images: Keras tensor (B, H, W, 3) of 0..255.  normalise: auto, or a key of NORMALISATIONS.  precision: float32 |
    bfloat16 | float16.  Returns (B, h, w, F), (B, F), or the mean or the class token of (B, T, F).
    Raises UserError if the file is missing, is of another kind or has another image size.
    """
    is_file = weights.endswith(".keras")
    is_local = "://" not in weights and not weights.startswith(HUB)
    if is_local and not (Path(weights).is_file() if is_file else (Path(weights) / "config.json").is_file()):
        raise UserError(
            f"weights {weights!r}: expected a .keras file, or the folder of a KerasHub preset with config.json; on Kaggle, "
            "attach the model and state its folder below /kaggle/input"
        )
    # Without a suffix such as rc0.
    keras_version = tuple(int(re.sub(r"\D.*", "", part) or 0) for part in keras.__version__.split("."))
    if keras_version < PATCHED_KERAS:
        raise UserError(
            f"weights {weights!r}: this file of a whole network would be loaded by Keras {keras.__version__}, which a hostile "
            f"file can make run code; Keras {'.'.join(map(str, PATCHED_KERAS))} is expected: "
            "`python -m pip install 'keras>=3.15.1'`, or use weights that are loaded alone (imagenet, .weights.h5)"
        )
    size = images.shape[1]
    model, scaling = _keras_file(weights, normalise) if is_file else _preset(weights, normalise, size)
    if precision not in ("auto", "float32"):
        for layer in model._flatten_layers():
            if not isinstance(layer, keras.Model) and layer.compute_dtype == "float32":
                layer.dtype_policy = keras.DTypePolicy(f"mixed_{precision}")
    images = normalised(images, scaling, is_bgr=normalise == "bgr")
    expected, received = tuple(model.inputs[0].shape[1:]), tuple(images.shape[1:])
    if any(side is not None and side != other for side, other in zip(expected, received, strict=True)):
        advice = f"set image_size: {expected[0]}"
        if None in received:
            advice = "set train.low_resolution_epochs: 0 and train_size: 0"
        raise UserError(f"weights {weights!r}: its network takes images of {expected}, found {received}; {advice}")
    features = model(dict.fromkeys(model.input, images) if isinstance(model.input, dict) else images)
    if len(features.shape) != 3:
        return features
    has_class_token = getattr(model, "use_class_token", type(model).__name__.startswith(ALWAYS_CLASS_TOKEN))
    return features[:, 0] if has_class_token else features


def normalised(images: Tensor, scaling: Scaling, is_bgr: bool) -> Tensor:
    """Scaled images (B, H, W, 3) of 0..255.  is_bgr: with the channels in reverse order."""
    if is_bgr:
        images = keras.ops.flip(images, axis=-1)
    scale, offset = scaling
    return images if scaling == NORMALISATIONS["none"] else keras.layers.Rescaling(scale, offset=offset)(images)


def _keras_file(path: str, normalise: str) -> tuple[keras.Model, Scaling]:
    """The model without its last layer if that gives classes, and its normalisation."""
    try:
        with files.local_copy(path) as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("not a .keras file")
            with zipfile.ZipFile(file) as archive:
                if b"keras_hub" in archive.read("config.json"):
                    _keras_hub(path)  # its import registers its layers
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


def _keras_hub(path: str) -> Any:
    with needed_for(f"weights {path!r}", "hub"):
        import keras_hub
    return keras_hub


def hub_handle(weights: str) -> str:
    """The Kaggle model of `hub:NAME`, e.g. keras/vit/keras/vit_base_patch16_224_imagenet/4."""
    presets, name = _keras_hub(weights).models.Backbone.presets, weights.removeprefix(HUB)
    if name not in presets:
        by_name = f"{did_you_mean(name, presets)}; keras.io/keras_hub/presets lists them"
        hint = f"; state this folder without {HUB}" if Path(name).exists() else by_name
        raise UserError(f"weights {weights!r}: KerasHub has no such preset{hint}")
    return str(presets[name]["kaggle_handle"]).removeprefix("kaggle://")


def hub_folder(weights: str) -> str:
    """The local folder of `hub:NAME`: of a model attached on Kaggle, or downloaded once to the cache of kagglehub."""
    handle = hub_handle(weights)
    import kagglehub

    try:
        return str(kagglehub.model_download(handle))
    except Exception as error:  # its exceptions have no common base
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(
            f"weights {weights!r}: the Kaggle model {handle} cannot be had ({reason}); on Kaggle attach it to the notebook, elsewhere "
            "connect the network, or state the folder of a copy"
        ) from None


def _preset(weights: str, normalise: str, size: int | None) -> tuple[keras.Model, Scaling]:
    """The backbone of a KerasHub preset for images of this size, and the normalisation of its image converter."""
    keras_hub = _keras_hub(weights)
    path = hub_folder(weights) if weights.startswith(HUB) else weights
    try:
        config = files.read_bytes(f"{path}/config.json")
        options: dict[str, Any] = {}
        if b"SwinTransformerBackbone" in config:
            options["drop_path"] = 0.0  # it fails in training
        if size and b"DINO" in config:
            options["image_shape"] = (size, size, 3)  # they interpolate their position embeddings themselves
        model = keras_hub.models.Backbone.from_preset(path, **options)
        model = getattr(model, "vision_encoder", model)  # beside the network for texts in CLIP and SigLIP
        if size and None not in (shape := tuple(model.inputs[0].shape[1:3])) and shape != (size, size):
            model = _at_size(model, size)
    except (ValueError, TypeError, OSError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"weights {weights!r}: {reason}; expected a KerasHub preset") from None
    if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4 or isinstance(model.output, dict):
        raise UserError(f"weights {weights!r}: {type(model).__name__} is no backbone of images")
    if normalise != "auto":
        return model, NORMALISATIONS[normalise]
    file = f"{path.rstrip('/')}/image_converter.json"  # the object itself would need tensorflow-text
    try:
        if "://" not in file and not Path(file).is_file():
            raise ValueError("there is no image_converter.json")
        converter = json.loads(files.read_bytes(file))["config"]
    except (UserError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"weights {path!r}: the preset states no normalisation ({str(error)[:200]}); state `normalise: ...` of the "
            f"member, one of {', '.join(NORMALISATIONS)}"
        ) from None
    scale, offset = converter.get("scale"), converter.get("offset")
    return model, (1.0 if scale is None else scale, 0.0 if offset is None else offset)


def _at_size(model: keras.Model, size: int) -> keras.Model:
    """The same network for square images of another size, with interpolated position embeddings.

    Raises ValueError if the architecture cannot have this size.
    """
    resized = type(model).from_config({**model.get_config(), "image_shape": (size, size, 3)})
    for to, source in zip(resized.weights, model.weights, strict=True):
        if to.shape == source.shape:
            to.assign(source)
        elif "position_embedding" in to.path:
            # The first ones belong to the class token and the like, which have no place in the image; the others to a square grid of
            # patches.
            tokens, features = np.asarray(source).reshape(source.shape[-2:]), source.shape[-1]
            sides = [math.isqrt(count) for count in (len(tokens), to.shape[-2])]
            apart = len(tokens) - sides[0] ** 2
            grid, shape = tokens[apart:].reshape(sides[0], sides[0], features), (sides[1], sides[1])
            image = keras.ops.image.resize(grid, shape, "bicubic", antialias=True, data_format="channels_last")
            to.assign(np.concatenate([tokens[:apart], np.asarray(image).reshape(-1, features)]).reshape(to.shape))
        elif "position_ids" not in to.path:  # which count from 0 at every size
            raise ValueError(f"{to.path} of shape {tuple(source.shape)} does not fit images of {size} pixels")
    return resized
