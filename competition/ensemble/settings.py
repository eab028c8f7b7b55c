"""Convert the blocks of params.yaml to the settings of the chain, and check the names in them."""

from dataclasses import asdict, replace

from competition.config.errors import UserError, did_you_mean
from competition.config.params import Params
from competition.config.plugins import active
from competition.ensemble.blend import BLENDS, BlendSettings, methods_for
from competition.ensemble.calibration import CALIBRATIONS
from competition.ensemble.chain import ChainSettings
from competition.ensemble.decision import RULES, DecisionSettings
from competition.ensemble.metrics import METRICS, metric_named
from competition.ensemble.policy import PolicySettings
from competition.ensemble.views import expand_views


def validate_params(params: Params) -> Params:
    """Return the parameters with groups of views expanded.

    Raises UserError for unknown names, so that they are reported before training.
    """
    for key, names, known in (
        ("blend.calibrations", params.blend.calibrations, CALIBRATIONS),
        ("blend.methods", params.blend.methods, BLENDS),
        ("decision.rules", params.decision.rules, RULES),
        (
            "competition.metric",
            (params.competition.metric,) if params.competition.metric else (),
            (*METRICS, *active().metrics),
        ),
    ):
        for name in names:
            if name not in known:
                raise UserError(f"{key}: {name!r} is not known{did_you_mean(name, known)}")
    if params.policy.mixing == "rank":
        for key, value, required in (
            ("policy.objective", params.policy.objective, "metric"),
            ("blend.mixing", params.blend.mixing, "rank"),
        ):
            if value != required:
                raise UserError(
                    f"{key}: expected '{required}' with policy.mixing rank, which gives no probabilities; found '{value}'"
                )
        if "stacking" in params.blend.methods:
            raise UserError(
                "blend.methods: 'stacking' needs probabilities, which policy.mixing rank does not give; state others, e.g. [equal]"
            )
    try:
        views = expand_views(params.predict.views)
    except UserError as user_error:
        raise UserError(f"predict.views: {user_error}") from None
    if "identity" not in views:
        raise UserError(
            "predict.views: expected 'identity' among the views, because every other view is compared with it"
        )
    return replace(params, predict=replace(params.predict, views=views))


def chain_settings(params: Params, metric: str, at_least_one: bool = False) -> ChainSettings:
    """The blocks policy, blend and decision as settings of the chain.

    at_least_one: multi-label, every row gets a label.
    Raises UserError for settings that do not apply to the metric's target.
    """
    target = metric_named(metric).target
    blend_values = {key: value for key, value in asdict(params.blend).items() if key not in NOT_OF_THE_CHAIN}
    policy, blend = PolicySettings(**asdict(params.policy)), BlendSettings(**blend_values)
    decision = DecisionSettings(**asdict(params.decision), at_least_one=at_least_one)
    if params.blend.class_shares == "test" and (target != "single" or "rank" in (policy.mixing, blend.mixing)):
        raise UserError(
            "blend.class_shares: test was found; only probabilities of single labels can be adapted, expected training"
        )
    if target != "single":
        unfit = [method for method in blend.methods if method not in methods_for(metric_named(metric), blend.methods)]
        if unfit:
            raise UserError(f"blend.methods: {unfit[0]!r} was found; it does not apply to {NAMES[target]} ({metric})")
        policy = replace(policy, mixing=_independent("policy.mixing", policy.mixing, target))
        blend = replace(blend, mixing=_independent("blend.mixing", blend.mixing, target))
    if target == "regression":  # the likelihood of a member without a variance is its squared error
        policy = replace(policy, objective="metric")
    return ChainSettings(metric, policy, blend, decision)


NOT_OF_THE_CHAIN = ("name", "members", "class_shares")  # keys of the block blend that fit nothing
NAMES = {"multi": "multi-label targets", "regression": "a regression"}


def _independent(key: str, mixing: str, target: str) -> str:
    """The mean of columns that do not sum to 1 (`mixing`).  key: of params.yaml."""
    if target == "regression" and mixing != "mean":
        raise UserError(f"{key}: {mixing!r} was found; a regression averages values, expected 'mean'")
    return {"mean": "average", "geometric": "log_odds"}.get(mixing, mixing)
