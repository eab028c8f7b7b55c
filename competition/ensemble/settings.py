"""The blocks of params.yaml as the settings of the chain, one to one."""

from dataclasses import asdict

from competition.ensemble.blend import BlendSettings
from competition.ensemble.chain import ChainSettings
from competition.ensemble.decision import DecisionSettings
from competition.ensemble.honest import HonestSettings
from competition.ensemble.policy import PolicySettings
from competition.params import Params


def chain_settings(params: Params, metric: str) -> ChainSettings:
    return ChainSettings(
        metric,
        PolicySettings(**asdict(params.policy)),
        BlendSettings(**asdict(params.blend)),
        DecisionSettings(**asdict(params.decision)),
    )


def honest_settings(params: Params) -> HonestSettings:
    return HonestSettings(**asdict(params.honest))
