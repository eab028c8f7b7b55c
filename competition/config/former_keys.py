"""Keys of params.yaml that no longer exist."""

from typing import Any

# Block -> removed parameter -> the default that it had, which results were made with.
REMOVED: dict[str, dict[str, Any]] = {
    "prepare": {"largest_megapixels": 150},
    "convert": {"stratify": True},
    "train": {"loop": "auto", "rand_augment": 0, "trivial_augment": False},
    "policy": {"seconds_limit": 0.0, "same_below": 1.0e-6},
}
