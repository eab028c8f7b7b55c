"""The settings of the chain, from the blocks of params.yaml, and checks of the names in these blocks."""

from dataclasses import asdict, dataclass, replace

from competition.config.errors import UserError, did_you_mean
from competition.config.params import Params
from competition.config.plugins import active
from competition.ensemble.blend import BLENDS, BlendSettings
from competition.ensemble.decision import RULES, DecisionSettings
from competition.ensemble.metrics import METRICS, metric_named
from competition.ensemble.policy import PolicySettings
from competition.ensemble.views import expand_views

NOT_OF_THE_CHAIN = ("name", "members", "class_shares")  # keys of the block blend that fit nothing


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """What may be fitted and how: the blocks policy, blend and decision of params.yaml."""

    metric: str  # a name in METRICS
    policy: PolicySettings
    blend: BlendSettings
    decision: DecisionSettings


def validate_params(params: Params) -> Params:
    """Return the parameters with groups of views expanded.

    Raises UserError for unknown names, so that they are reported before training.
    """
    for key, names, known in (
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
    blend_values = {key: value for key, value in asdict(params.blend).items() if key not in NOT_OF_THE_CHAIN}
    if params.blend.class_shares == "test" and metric_named(metric).target != "single":
        raise UserError(
            "blend.class_shares: test was found; only probabilities of single labels can be adapted, expected training"
        )
    decision = DecisionSettings(**asdict(params.decision), at_least_one=at_least_one)
    return ChainSettings(metric, PolicySettings(**asdict(params.policy)), BlendSettings(**blend_values), decision)
