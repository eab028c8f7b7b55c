"""Which members teach which: the order of training, the teachers of a member, and rules for nested teachers."""

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


def check_nested(params: Params) -> None:
    """Nested teachers are trained without two folds; a nested student among them would need models without three."""
    for name in params.members:
        if not params.members[name].has_nested_teachers:
            continue
        keys = ("members", name, "teacher_scheme")
        if params.prepare.folds < 3:
            raise InvalidParameter(
                keys, f"nested was found; it needs 3 folds or more, and prepare.folds is {params.prepare.folds}"
            )
        for teacher in ancestors(params, name):
            if params.members[teacher].has_nested_teachers:
                raise InvalidParameter(
                    keys,
                    f"nested was found, and its teacher {teacher} is a nested student itself, which would need models without "
                    "three folds; set teacher_scheme to same_fold for one of them",
                )
