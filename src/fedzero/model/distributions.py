"""Names and versions of distributions that something was written with: what a ledger, a patch or an order says that it
needs. They are shown as words to type after `pip install`, where anything else could be an option or a command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fedzero.lines import printable

MOST = 64
"""Distributions that something can need."""
LONGEST = 100
"""Characters of a name, and of a version."""
_NAME = re.compile(r"(?ai)[a-z0-9]([a-z0-9._-]*[a-z0-9])?")  # PEP 508
_VERSION = re.compile(  # PEP 440
    r"(?ai)v?([0-9]+!)?[0-9]+(\.[0-9]+)*([-_.]?(alpha|beta|preview|pre|rc|a|b|c)[-_.]?[0-9]*)?"
    r"(-[0-9]+|[-_.]?(post|rev|r)[-_.]?[0-9]*)?([-_.]?dev[-_.]?[0-9]*)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?"
)


def check(needs: Mapping[str, str]) -> None:
    """Raises `ValueError`, which decoders make a refusal of."""
    if len(needs) > MOST:
        raise ValueError(f"it needs {len(needs)} distributions, and at most {MOST} can be named")
    for name, version in needs.items():
        for text, pattern, what in ((name, _NAME, "name"), (version, _VERSION, "version")):
            if len(text) > LONGEST or pattern.fullmatch(text) is None:
                raise ValueError(f"it needs {printable(text, 60)!r}, which is no {what} of a distribution")
