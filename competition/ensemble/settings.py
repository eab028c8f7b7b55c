"""The settings of the chain, from the blocks of params.yaml, and checks of the names in these blocks."""

from dataclasses import dataclass, replace

from competition.config.errors import UserError, did_you_mean
from competition.config.params import Blend, Decision, Names, Params, Policy
from competition.config.plugins import Plugins
from competition.ensemble.blend_weights import BLENDS
from competition.ensemble.decision import RULES
from competition.ensemble.metrics import METRICS, Metric
from competition.ensemble.view_transforms import expand_views


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """What may be fitted and how: the blocks policy, blend and decision of params.yaml."""

    metric: Metric
    policy: Policy
    blend: Blend
    decision: Decision
    at_least_one: bool = False  # multi-label: every row gets a label (the submission has no empty lists)


def validate_params(params: Params) -> Params:
    """Return the parameters with groups of views expanded.

    Raises UserError for unknown names, so that they are reported before training.
    """
    metrics = ("", *METRICS, *params.plugins.metrics)
    for key, names, known in (
        ("blend.methods", params.blend.methods, BLENDS),
        ("decision.rules", params.decision.rules, RULES),
        ("competition.metric", (params.competition.metric,), metrics),
    ):
        for name in names:
            if name not in known:
                raise UserError(f"{key}: {name!r} is not known{did_you_mean(name, known)}")
    views = _expanded("predict.views", params.predict.views, params.plugins)
    members = {
        name: replace(one, views=_expanded(f"members.{name}.views", one.views, params.plugins)) if one.views else one
        for name, one in params.members.items()
    }
    return replace(params, predict=replace(params.predict, views=views), members=members)


def _expanded(key: str, names: Names, plugins: Plugins) -> Names:
    try:
        views = expand_views(names, plugins)
    except UserError as user_error:
        raise UserError(f"{key}: {user_error}") from None
    if "identity" not in views:
        raise UserError(f"{key}: expected 'identity' among the views, because every other view is compared with it")
    return views


def chain_settings(params: Params, metric: Metric, at_least_one: bool = False) -> ChainSettings:
    """The blocks policy, blend and decision as settings of the chain.

    Raises UserError for settings that do not apply to the metric's target.
    """
    if params.blend.class_shares == "test" and metric.target != "single":
        raise UserError(
            "blend.class_shares: test was found; only probabilities of single labels can be adapted, expected training"
        )
    return ChainSettings(metric, params.policy, params.blend, params.decision, at_least_one)
