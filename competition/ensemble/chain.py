"""The chain: every fitted step from per-view probabilities to labels, in one value::

    views -> TTA policy (per member) -> blend -> decision rule

A chain is fitted on out-of-fold rows and saved as JSON. The same function, `apply_chain`, applies it to out-of-fold rows
and test rows, so that what is scored is what is submitted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from competition.config.errors import UserError
from competition.ensemble.blend_weights import Blend
from competition.ensemble.decision import Decision
from competition.ensemble.stored_predictions import ViewPredictions, chunks
from competition.ensemble.tta_policy import mix_views

MemberViews = Mapping[str, ViewPredictions]  # member -> its predictions; the same ids in the same order
CandidateKey = tuple[str, str]  # blend method, decision rule
# Version of what is fitted and scored on equal predictions: raise it when these results change (see training/versions.py).
BLEND = 9


@dataclass(frozen=True)
class Chain:
    """The fitted steps."""

    metric: str
    policies: Mapping[str, Mapping[str, float]]  # member -> view -> weight
    blend: Blend
    decision: Decision

    @staticmethod
    def load(path: Path) -> "Chain":
        try:
            fields = json.loads(path.read_text())
            for step, kind in (("blend", Blend), ("decision", Decision)):
                values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields[step].items()}
                fields[step] = kind(**values)
            return Chain(**fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a valid chain ({error!r}); create it again with `make blend`") from error


def apply_chain(chain: Chain, members: MemberViews, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return (n, C) float32 probabilities and (n,) int labels ((n, C) bool of a multi-label competition).

    rows: row numbers; None = all rows, in the order of the ids.  Zero-weight members may be missing.
    """
    used = {name: members[name] for name in chain.blend.used}
    check_aligned(used)
    count, _, classes = next(iter(used.values())).probs.shape
    rows = np.arange(count) if rows is None else rows
    probs, labels = np.empty((len(rows), classes), np.float32), []
    for part in chunks(len(rows), classes):
        views = {name: mix_views(member, chain.policies[name], rows[part]) for name, member in used.items()}
        probs[part] = chain.blend.mix(views)
        labels.append(chain.decision.labels(probs[part]))
        for member in used.values():
            member.release()
    return probs, np.concatenate(labels)


def check_aligned(members: MemberViews) -> None:
    """Raise UserError if members have other ids, or another order of them."""
    if not members:
        raise UserError("expected the predictions of at least one member, found none; run `make predict`")
    ids = next(iter(members.values())).ids
    for name, predictions in members.items():
        if not np.array_equal(predictions.ids, ids):
            raise UserError(f"member '{name}' has other ids, or another order; expected aligned members")
