"""Links of the documentation to files of the repository: in the site these lie in files/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(\.\./((?:examples|tests)/[\w./-]+|SECURITY\.md)\)")


def linked() -> set[str]:
    """Files outside of docs/ that its pages link to."""
    return {name for page in (ROOT / "docs").glob("*.md") for name in LINK.findall(page.read_text(encoding="utf-8"))}


def on_page_markdown(markdown: str, **_: Any) -> str:
    return LINK.sub(r"](files/\1)", markdown).replace("](docs/", "](../")  # SECURITY.md links back
