"""The "did you mean" part of messages about unknown names."""

import difflib
from collections.abc import Iterable

MAX_LISTED = 30  # names
# What other libraries call it -> our names, of which the first that is among the choices is suggested.
SYNONYMS = {
    "lr": ("learning_rate",), "wd": ("weight_decay",), "bs": ("batch",), "batch_size": ("batch",), "num_epochs": ("epochs",),
    "arch": ("architecture",), "model": ("architecture",), "backbone": ("architecture",), "pretrained": ("weights",),
    "img_size": ("image_size",), "size": ("image_size",), "resolution": ("image_size",), "n_folds": ("folds",),
    "n_splits": ("folds",), "k": ("folds",), "n_trials": ("trials",), "random_state": ("seed",), "tta": ("views",),
    "momentum": ("ema", "norm_momentum"), "smoothing": ("label_smoothing",), "grad_clip": ("clip_norm",), "hflip": ("flip",),
    "max_pixels": ("largest_megapixels",), "data_dir": ("source",), "path": ("source",), "url": ("slug",),
}  # fmt: skip


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the most similar choice, else "; known are ..." for a short list, else "".

    `word` itself is never suggested.
    """
    names = [choice for choice in choices if choice != word]
    similar = [name for name in SYNONYMS.get(word.casefold(), ()) if name in names]
    similar = similar or difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if similar:
        return f"; did you mean '{similar[0]}'?"
    return f"; known are {', '.join(names)}" if 0 < len(names) <= MAX_LISTED else ""
