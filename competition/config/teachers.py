"""Which members teach which: the order of training and the teachers of a member."""

from competition.config.errors import InvalidParameter
from competition.config.params import Params


def ancestors(params: Params, name: str) -> list[str]:
    """Names of a member's direct and indirect teachers, in training order."""
    order = in_training_order(params)
    teachers: set[str] = set()
    for member in reversed(order):
        if member == name or member in teachers:
            teachers |= set(params.members[member].teacher)
    return [member for member in order if member in teachers]


def in_training_order(params: Params) -> list[str]:
    """Names of the members, teachers before their students. Raises InvalidParameter for a cycle."""
    order: list[str] = []
    while len(order) < len(params.members):
        pending = [name for name in params.members if name not in order]
        ready = [name for name in pending if set(params.members[name].teacher) <= set(order)]
        if not ready:
            raise InvalidParameter(
                ("members", pending[0], "teacher"),
                "teachers and students form a cycle; remove the teacher of one of them",
            )
        order += ready
    return order
