"""The blocks of params.yaml as the settings of the chain, one to one."""

from dataclasses import asdict, replace

from competition.config.errors import UserError
from competition.config.params import Params
from competition.config.suggestions import did_you_mean
from competition.ensemble.blend import BLENDS, BlendSettings
from competition.ensemble.calibration import CALIBRATIONS
from competition.ensemble.chain import ChainSettings
from competition.ensemble.decision import RULES, DecisionSettings
from competition.ensemble.honest import HonestSettings
from competition.ensemble.metrics import METRICS
from competition.ensemble.policy import PolicySettings
from competition.ensemble.views import expand_views


def validate_params(params: Params) -> Params:
    """The parameters with groups of views written out. Raises UserError for a name that nothing here has: before hours of
    training, not after them.
    """
    for key, given, known in (
        ("blend.calibrations", params.blend.calibrations, CALIBRATIONS),
        ("blend.methods", params.blend.methods, BLENDS),
        ("decision.rules", params.decision.rules, RULES),
        ("competition.metric", (params.competition.metric,) if params.competition.metric else (), METRICS),
    ):
        for name in given:
            if name not in known:
                raise UserError(f"{key}: {name!r} is not known{did_you_mean(name, known)}")
    if params.policy.mixing == "rank":
        for key, said, needed in (
            ("policy.by", params.policy.by, "metric"),
            ("blend.mixing", params.blend.mixing, "rank"),
        ):
            if said != needed:
                raise UserError(
                    f"{key}: '{said}' was found; policy.mixing rank gives no probabilities and needs '{needed}'"
                )
        if "stacking" in params.blend.methods:
            raise UserError("blend.methods: 'stacking' needs probabilities, which policy.mixing rank does not give")
    try:
        views = expand_views(params.predict.views)
    except UserError as user_error:
        raise UserError(f"predict.views: {user_error}") from None
    if "identity" not in views:
        raise UserError(
            "predict.views: 'identity' was not found; the plain view is what every other one is measured against"
        )
    return replace(params, predict=replace(params.predict, views=views))


def chain_settings(params: Params, metric: str) -> ChainSettings:
    return ChainSettings(
        metric,
        PolicySettings(**asdict(params.policy)),
        BlendSettings(**asdict(params.blend)),
        DecisionSettings(**asdict(params.decision)),
    )


def honest_settings(params: Params) -> HonestSettings:
    return HonestSettings(**asdict(params.honest))
