"""The chain: every fitted step from per-view probabilities to labels, in one value::

    views -> TTA policy (per member) -> temperature (per member) -> blend -> decision rule

A chain is fitted on out-of-fold rows and saved as JSON. The same function, `apply_chain`, applies it to out-of-fold rows
and test rows, so that what is scored is what is submitted.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from competition.config.digests import digest_of, to_plain
from competition.config.errors import UserError
from competition.ensemble.blend import Blend, BlendSettings
from competition.ensemble.calibration import apply_temperature
from competition.ensemble.decision import Decision, DecisionSettings
from competition.ensemble.metrics import metric_named
from competition.ensemble.outputs import chunks, mix_views
from competition.ensemble.policy import PolicySettings
from competition.ensemble.predictions import ViewPredictions
from competition.files.manifest import atomic_write

MemberViews = Mapping[str, ViewPredictions]  # member -> its predictions; the same ids in the same order, see `align`
CandidateKey = tuple[str, str, str]  # calibration, blend method, decision rule
# Version of what is fitted and scored on equal predictions: raise it when these results change (see training/versions.py).
BLEND = 3
ViewSeconds = Mapping[str, Mapping[str, float]]  # member -> view -> inference time in seconds per 1,000 images


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """What may be fitted and how: the blocks policy, blend and decision of params.yaml."""

    metric: str  # a name in METRICS
    policy: PolicySettings
    blend: BlendSettings
    decision: DecisionSettings


@dataclass(frozen=True)
class Chain:
    """The fitted steps."""

    metric: str
    policies: Mapping[str, Mapping[str, float]]  # member -> view -> weight
    view_mixing: str  # mean | geometric | rank
    temperatures: Mapping[str, float]  # member -> T; all 1 if no calibration was selected
    blend: Blend
    decision: Decision

    @property
    def calibration(self) -> str:
        """none | temperature"""
        return "temperature" if any(value != 1.0 for value in self.temperatures.values()) else "none"

    @property
    def by_rows(self) -> bool:
        """True if a row's output depends on this row alone; False for ranks, which depend on the other rows."""
        return "rank" not in (self.view_mixing, self.blend.mixing)

    def used_views(self) -> dict[str, list[str]]:
        """Member -> views with a weight, which must be predicted on test rows; only members with a weight."""
        return {m: list(self.policies[m]) for m, weight in self.blend.weights.items() if weight}

    def digest(self) -> str:
        return digest_of(self)

    def save(self, path: Path) -> None:
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(to_plain(self), indent=1) + "\n")

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


def align(members: MemberViews, ids: np.ndarray) -> dict[str, ViewPredictions]:
    """Select every member's predictions of these ids, in this order. Raises UserError for missing ids."""
    aligned = {}
    for name, predictions in members.items():
        try:
            aligned[name] = predictions.at(ids)
        except UserError as user_error:
            raise UserError(f"member '{name}': {user_error}") from user_error
    check_aligned(aligned)
    return aligned


class ChainMembers(Mapping[str, np.ndarray]):
    """Member -> (n, C) float32 as it enters the blend; computed on access, so never all members are in memory."""

    def __init__(self, chain: Chain, members: MemberViews, rows: np.ndarray) -> None:
        """rows: (n,) int, the row numbers."""
        self.chain, self.members, self.rows = chain, members, rows

    def __getitem__(self, name: str) -> np.ndarray:
        return member_probs(self.chain, name, self.members[name], self.rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)


def apply_chain(chain: Chain, members: MemberViews, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return (n, C) float32 probabilities and (n,) int labels ((n, C) bool of a multi-label competition).

    rows: row numbers; None = all rows, in the order of the ids.  Zero-weight members may be missing.
    """
    parts = list(_apply_in_chunks(chain, members, rows))
    if len(parts) == 1:
        return parts[0]
    labels = np.concatenate([part_labels for _, part_labels in parts])
    chunks = [chunk for chunk, _ in parts]
    del parts
    probs = np.empty((len(labels), chunks[0].shape[1]), np.float32)
    start = 0
    while chunks:  # each chunk is freed once it is copied, so that two copies are never in memory
        chunk = chunks.pop(0)
        probs[start : start + len(chunk)] = chunk
        start += len(chunk)
    return probs, labels


def chain_labels(chain: Chain, members: MemberViews, rows: np.ndarray | None = None) -> np.ndarray:
    """(n,) int: the labels of `apply_chain`, without holding the probabilities of all rows."""
    return np.concatenate([labels for _, labels in _apply_in_chunks(chain, members, rows)])


def _apply_in_chunks(
    chain: Chain, members: MemberViews, rows: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    missing = [name for name in chain.used_views() if name not in members]
    if missing:
        raise UserError(f"{len(missing)} blended members have no predictions, first {missing[:3]}; run `make predict`")
    used = {name: members[name] for name in chain.used_views()}
    check_aligned(used)
    count, _, classes = next(iter(used.values())).probs.shape
    count = count if rows is None else len(rows)
    for part in chunks(count, classes) if chain.by_rows and count else [slice(0, count)]:
        chunk = part if rows is None else rows[part]
        probs = chain.blend.mix({name: member_probs(chain, name, member, chunk) for name, member in used.items()})
        for member in used.values():
            member.release()
        yield probs, chain.decision.labels(probs)


def member_probs(
    chain: Chain, member: str, predictions: ViewPredictions, rows: np.ndarray | slice | None = None
) -> np.ndarray:
    """(n, C) float32: one member after its policy and temperature, as it enters the blend.  rows: None = all."""
    mixed = mix_views(predictions, chain.policies[member], chain.view_mixing, rows)
    return apply_temperature(mixed, chain.temperatures[member], metric_named(chain.metric).target == "multi")


def check_aligned(members: MemberViews) -> None:
    """Raise UserError if members have different ids or numbers of classes."""
    if not members:
        raise UserError("expected the predictions of at least one member, found none; run `make predict`")
    ids = next(iter(members.values())).ids
    classes = {name: predictions.probs.shape[2] for name, predictions in members.items()}
    if len(set(classes.values())) > 1:
        raise UserError(f"members have different numbers of classes: {classes}; expected one number")
    for name, predictions in members.items():
        if not np.array_equal(predictions.ids, ids):
            raise UserError(f"member '{name}' has other ids, or another order; expected aligned members")
