"""`[report]` of a recipe: which loggers are told of a run.

Loggers send data out. So this table is never on a ledger, travels in no message, and is refused in a recipe that comes
from a ledger, a server or a site. It is obeyed in a recipe file that the user runs, and as `report_to`.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from fedzero.model.value import Checked

Logger = Literal["tensorboard", "mlflow", "wandb"]
LOGGERS: tuple[Logger, ...] = get_args(Logger)


class Report(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Loggers of a run."""

    to: Logger | Annotated[tuple[Logger, ...], Meta(min_length=1)]
    """tensorboard, mlflow or wandb, or a list of these."""
    folder: str = ""
    """TensorBoard: where event files are written; default: tensorboard in the folder of the run."""
    uri: str = ""
    """MLflow: tracking URI; default: MLFLOW_TRACKING_URI, or mlflow.db in the current folder."""
    project: str = "fedzero"
    """Experiment of MLflow, project of W&B."""

    @property
    def loggers(self) -> tuple[Logger, ...]:
        return (self.to,) if isinstance(self.to, str) else tuple(dict.fromkeys(self.to))
