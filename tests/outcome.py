"""How a command ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a command left behind: exit status and both streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        last: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return last

    def refused(self, *words: str) -> None:
        """Bad input: exit status 2 and one sentence with these words in it."""
        assert self.code == 2, (self.code, self.err)
        assert self.out == ""
        assert "Traceback" not in self.err
        (sentence,) = self.err.splitlines()
        assert sentence.startswith("fedzero: ")
        for word in words:
            assert word in sentence, sentence
