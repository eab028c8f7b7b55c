"""The whole way from per-view probabilities to labels, as one small value.

    views -> policy (per member) -> temperature (per member) -> blend -> decision rule

A chain is fitted on out-of-fold rows, written to JSON, read back, and applied by one function to out-of-fold rows and
test rows alike: what was scored is what is submitted.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from competition.artifacts.manifest import atomic_write, digest_of, to_plain
from competition.config.errors import UserError
from competition.ensemble.blend import Blend, BlendSettings
from competition.ensemble.calibration import apply_temperature
from competition.ensemble.decision import Decision, DecisionSettings
from competition.ensemble.outputs import chunks, mix_views
from competition.ensemble.policy import PolicySettings
from competition.ensemble.predictions import ViewPredictions

MemberViews = Mapping[str, ViewPredictions]  # all with the same ids in the same order, see `align`
Name = tuple[str, str, str]  # calibration, blend method, decision rule
ViewSeconds = Mapping[str, Mapping[str, float]]  # member -> view -> seconds for 1,000 images


@dataclass(frozen=True, slots=True)
class ChainSettings:
    metric: str  # a name in METRICS
    policy: PolicySettings
    blend: BlendSettings
    decision: DecisionSettings


@dataclass(frozen=True)
class Chain:
    metric: str
    policies: Mapping[str, Mapping[str, float]]  # member -> view -> weight
    view_mixing: str  # mean | geometric | rank
    temperatures: Mapping[str, float]  # member -> T; 1 for all where none is the better calibration
    blend: Blend
    decision: Decision

    @property
    def calibration(self) -> str:
        """none | temperature"""
        return "temperature" if any(value != 1.0 for value in self.temperatures.values()) else "none"

    @property
    def by_rows(self) -> bool:
        """Whether a row's output depends on that row alone: ranks depend on the rows that they are taken among."""
        return "rank" not in (self.view_mixing, self.blend.mixing)

    def used_views(self) -> dict[str, list[str]]:
        """Member -> views that must be predicted on test rows; the others have no weight."""
        return {m: list(self.policies[m]) for m, weight in self.blend.weights.items() if weight}

    def digest(self) -> str:
        return digest_of(self)

    def save(self, path: Path) -> None:
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(to_plain(self), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Chain":
        try:
            have = json.loads(path.read_text())
            blend, decision = have["blend"], have["decision"]
            return Chain(
                have["metric"],
                have["policies"],
                have["view_mixing"],
                have["temperatures"],
                Blend(blend["method"], blend["mixing"], blend["weights"], tuple(blend["offsets"])),
                Decision(decision["rule"], tuple(decision["offsets"]), tuple(decision["thresholds"]), decision["tau"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a chain of choices ({error!r}); make it again with `make blend`") from error


def align(members: MemberViews, ids: np.ndarray) -> dict[str, ViewPredictions]:
    """Every member's predictions for exactly these ids, in this order, all with the same number of classes."""
    aligned = {}
    for name, views in members.items():
        try:
            aligned[name] = views.at(ids)
        except UserError as user_error:
            raise UserError(f"member '{name}': {user_error}") from user_error
    check_aligned(aligned)
    return aligned


class ChainMembers(Mapping[str, np.ndarray]):
    """Member -> (n, C) float32 as it enters the blend, computed when it is asked for: never all members at once."""

    def __init__(self, chain: Chain, views: MemberViews, rows: np.ndarray) -> None:
        """rows: (n,) int, the row numbers."""
        self.chain, self.views, self.rows = chain, views, rows

    def __getitem__(self, name: str) -> np.ndarray:
        return member_probs(self.chain, name, self.views[name], self.rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.views)


def apply_chain(chain: Chain, views: MemberViews, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(n, C) float32 probabilities and (n,) int labels, in the order of the ids, of the row numbers `rows` or of all.

    Members without weight may be missing.
    """
    parts = list(_apply_in_chunks(chain, views, rows))
    if len(parts) == 1:
        return parts[0]
    total = sum(len(labels) for _, labels in parts)
    probs = np.empty((total, parts[0][0].shape[1]), np.float32)
    at = 0
    for n, (some, _) in enumerate(parts):
        probs[at : at + len(some)] = some
        at += len(some)
        parts[n] = (some[:0], parts[n][1])  # so that the chunks go as they are copied
    return probs, np.concatenate([labels for _, labels in parts])


def chain_labels(chain: Chain, views: MemberViews, rows: np.ndarray | None = None) -> np.ndarray:
    """(n,) int: the labels of `apply_chain`, without holding the probabilities of all rows."""
    return np.concatenate([labels for _, labels in _apply_in_chunks(chain, views, rows)])


def _apply_in_chunks(
    chain: Chain, views: MemberViews, rows: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    missing = [name for name in chain.used_views() if name not in views]
    if missing:
        raise UserError(f"{len(missing)} blended members have no predictions, first {missing[:3]}; run `make predict`")
    used = {name: views[name] for name in chain.used_views()}
    check_aligned(used)
    count, _, classes = next(iter(used.values())).probs.shape
    count = count if rows is None else len(rows)
    for part in chunks(count, classes) if chain.by_rows and count else [slice(0, count)]:
        at = part if rows is None else rows[part]
        probs = chain.blend.mix({name: member_probs(chain, name, member, at) for name, member in used.items()})
        for member in used.values():
            member.release()
        yield probs, chain.decision.labels(probs)


def member_probs(chain: Chain, name: str, views: ViewPredictions, rows: np.ndarray | slice | None = None) -> np.ndarray:
    """(n, C) float32: one member after its policy and temperature, as it enters the blend, for `rows` or all."""
    return apply_temperature(mix_views(views, chain.policies[name], chain.view_mixing, rows), chain.temperatures[name])


def check_aligned(views: MemberViews) -> None:
    """Refuse members whose ids, or numbers of classes, differ."""
    if not views:
        raise UserError("expected the predictions of at least one member, found none; run `make predict`")
    first = next(iter(views.values())).ids
    classes = {name: v.probs.shape[2] for name, v in views.items()}
    if len(set(classes.values())) > 1:
        raise UserError(f"members have different numbers of classes: {classes}; expected one number")
    for name, member in views.items():
        if not np.array_equal(member.ids, first):
            raise UserError(f"member '{name}' has other ids, or another order; expected aligned members")
