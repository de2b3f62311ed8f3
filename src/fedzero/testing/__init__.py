"""Conformance as functions: whether a method, a task or a filter of anybody's works with everything else.

    from fedzero.testing import check_method
    check_method(MyMethod(rate=0.01))

Each raises `CheckFailed`, which says in words what is wrong. Our own methods, tasks and links pass the same checks.
"""

from fedzero.testing.filters import check_filter, check_link
from fedzero.testing.methods import check_method
from fedzero.testing.tasks import check_task
from fedzero.testing.trial import CheckFailed

__all__ = ["CheckFailed", "check_filter", "check_link", "check_method", "check_task"]
