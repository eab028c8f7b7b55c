"""Digest of the source code that a fold model depends on: what builds it, feeds it and trains it.

Modules are digested as syntax trees without comments, docstrings, annotations and messages of exceptions, so that only
a change of behaviour counts. The trees are written by this module, because `ast.dump` differs between Python versions:
a Kaggle kernel must get the same digest as this machine.
"""

import ast
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from competition.config.plugin_digest import is_docstring
from competition.files.manifest import sha256

PACKAGE = Path(__file__).resolve().parents[1]

# Modules of competition/ that a fold model depends on. The others of data/ and training/ are listed, with the reason, in
# tests/workspace/test_code_digest.py.
DIGESTED = (
    "workspace/soft_labels",
    "images/augment",
    "images/augmentations",
    "images/batches",
    "images/device_numbers",
    "images/draws",
    "images/image_operations",
    "prepare/decoding",
    "images/inner_part",
    "images/labelled_images",
    "images/mixing",
    "images/policies",
    "prepare/targets",
    "training/batch_augmentation",
    "training/device_augmentation",
    "training/engine",
    "training/engine_jax",
    "training/engine_tensorflow",
    "training/engines",
    "training/fold_rows",
    "training/fused_batch_norm",
    "training/initializers",
    "training/keras_fit",
    "training/loop",
    "training/model",
    "training/optimizer",
    "training/predictor_tensorflow",
    "training/pretrained_file",
    "training/probe",
    "training/schedule",
    "training/trainer",
)


def code_digest() -> str:
    """Digest of the code that a fold model depends on, without that of the user (plugins.plugin_digest)."""
    digests = [source_digest(PACKAGE / f"{module}.py") for module in DIGESTED]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def source_digest(file: Path) -> str:
    """Digest of one source file; cached while the file is unchanged."""
    return _tree_digest(file, sha256(file))


@lru_cache(maxsize=256)
def _tree_digest(file: Path, content: str) -> str:
    """content: digest of the file, only a key of the cache."""
    tree = ast.parse(file.read_bytes())
    return hashlib.sha256(repr(_plain(tree)).encode()).hexdigest()


def _plain(node: Any) -> Any:
    """A syntax tree as nested tuples, without what has no effect on the behaviour and without empty fields."""
    if isinstance(node, ast.Raise):
        return "Raise"  # the text of a message
    if isinstance(node, ast.AST):
        fields = dict(ast.iter_fields(node))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            fields["body"] = [statement for statement in fields["body"] if not is_docstring(statement)]
        if isinstance(node, ast.arg):
            fields.pop("annotation", None)
        fields.pop("returns", None)
        fields.pop("kind", None)  # u"" and "" are the same text
        present = [(name, value) for name, value in fields.items() if value is not None and value != []]
        return (type(node).__name__, *((name, _plain(value)) for name, value in present))
    if isinstance(node, list):
        return tuple(_plain(item) for item in node)
    return repr(node)
