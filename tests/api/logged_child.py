"""A process that is killed while a logger follows its run; forked from a server that has fedzero loaded."""

from __future__ import annotations

import os
import sys
from typing import Any

import fedzero
from fedzero.loggers import reporter


class Dies:
    def round(self, result: Any) -> None:
        if result.rounds == 7:
            os.kill(os.getpid(), 9)


def play(table: dict[str, Any], folder: str) -> None:
    assert not {"tensorboard", "mlflow", "wandb"} & sys.modules.keys(), "nobody asked for it"
    reporter.EVERY = 0.001  # it is killed in the middle of writing
    fedzero.run(table, out=folder, progress=False, callbacks=[Dies()], report_to="tensorboard")
