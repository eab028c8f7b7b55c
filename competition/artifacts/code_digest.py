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

from competition.artifacts.manifest import sha256

PACKAGE = Path(__file__).resolve().parents[1]

# Modules of competition/ that a fold model depends on.
DIGESTED = (
    "artifacts/soft_labels",
    "data/augment",
    "data/augmentations",
    "data/batches",
    "data/device_numbers",
    "data/draws",
    "data/image_operations",
    "data/images",
    "data/inner_part",
    "data/labelled_images",
    "data/mixing",
    "data/policies",
    "data/targets",
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

# Modules of training/ and data/ that do not change a fold model, with the reason.
IRRELEVANT = {
    "data/cache": "stores what images.py decodes, unchanged",
    "data/caveats": "a check, read by people",
    "data/competition": "types; the content is part of the data digest",
    "data/convert/beam": "writes record files; their images are part of the data digest",
    "data/convert/files": "writes record files; their images are part of the data digest",
    "data/convert/local": "writes record files; their images are part of the data digest",
    "data/convert/plan": "writes record files; their images are part of the data digest",
    "data/convert/schema": "writes record files; their images are part of the data digest",
    "data/convert/shard": "writes record files; their images are part of the data digest",
    "data/convert/sources": "writes record files; their images are part of the data digest",
    "data/convert/tfrecord": "writes record files; their images are part of the data digest",
    "data/convert/work_list": "writes record files; their images are part of the data digest",
    "data/duplicates": "decides groups, which are part of the data digest",
    "data/embedding": "decides groups, which are part of the data digest",
    "data/fold_table": "exports the folds",
    "data/folds": "assigns folds, which are part of the data digest",
    "data/index": "writes the index, which is part of the data digest",
    "data/label_issues": "a check, after training",
    "data/loader": "makes in threads what batches.py describes, unchanged",
    "data/leaks": "decides which rows are in the index",
    "data/near_hashes": "decides groups, which are part of the data digest",
    "data/pixels": "reads what images.py decodes, unchanged",
    "data/prepared": "loads the index",
    "data/records": "stores image bytes, whose digests are in the index",
    "data/series": "decides groups, which are part of the data digest",
    "data/shift": "a check, read by people",
    "data/stream": "decodes on demand what images.py decodes",
    "data/adapters/columns": "its rows are part of the data digest",
    "data/adapters/digits": "its rows are part of the data digest",
    "data/adapters/drawn": "its rows are part of the data digest",
    "data/adapters/files": "its rows are part of the data digest",
    "data/adapters/flowers": "its rows are part of the data digest",
    "data/adapters/class_folders": "its rows are part of the data digest",
    "data/adapters/folder": "its rows are part of the data digest",
    "data/adapters/labelled_tables": "its rows are part of the data digest",
    "data/adapters/layout": "its rows are part of the data digest",
    "data/adapters/plants": "its rows are part of the data digest",
    "data/adapters/source": "its rows are part of the data digest",
    "data/adapters/target_tables": "its rows are part of the data digest",
    "data/adapters/tables": "its rows are part of the data digest",
    "training/bench": "measures speed",
    "training/checkpoint": "stores weights, unchanged",
    "training/device": "a model counts as the same on any device",
    "training/fault_tolerance": "a resumed model is the same model",
    "training/grad_cam": "shows what a trained model looks at",
    "training/input_stall": "measures speed",
    "training/largest_batch": "answers an error",
    "training/view_cost": "measures speed",
}


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
            fields["body"] = [statement for statement in fields["body"] if not _is_text(statement)]
        if isinstance(node, ast.arg):
            fields.pop("annotation", None)
        fields.pop("returns", None)
        fields.pop("kind", None)  # u"" and "" are the same text
        present = [(name, value) for name, value in fields.items() if value is not None and value != []]
        return (type(node).__name__, *((name, _plain(value)) for name, value in present))
    if isinstance(node, list):
        return tuple(_plain(item) for item in node)
    return repr(node)


def _is_text(statement: ast.stmt) -> bool:
    """Return True for a docstring, or any other text that stands alone."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
