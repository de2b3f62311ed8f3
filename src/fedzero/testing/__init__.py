"""Conformance as functions: whether a method, task, link, rule, engine or transport of anybody's works with all else.

    from fedzero.testing import check_method
    check_method(MyMethod(rate=0.01))

Each raises `CheckFailed`, which says in words what is wrong. Our own pass the same checks.
"""

from fedzero.testing.engine_checks import check_engine
from fedzero.testing.filters import check_filter, check_link
from fedzero.testing.methods import check_method
from fedzero.testing.rules import check_rule
from fedzero.testing.tasks import check_task
from fedzero.testing.transport_checks import check_transport
from fedzero.testing.trial import CheckFailed

__all__ = [
    "CheckFailed",
    "check_engine",
    "check_filter",
    "check_link",
    "check_method",
    "check_rule",
    "check_task",
    "check_transport",
]
