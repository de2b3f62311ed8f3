"""fedzero: federated optimization with zero gradients and near-zero communication.

    fedzero.train(model, clients=…, loss=…)        any module, data and loss
    fedzero.finetune(model, tokenizer, …)          language models of transformers, on rows with a prompt
    fedzero.run("demo", out=…)                     a recipe: packaged, a file, or a table
    fedzero.Run.open(folder)                       a run: history, summary, replay, verify, report, patch, resume
    fedzero.minimise(functions, bounds=…)          black boxes of several parties, minimised together
    fedzero.Integer(1, 10), Choice("a", "b")       bounds of coordinates that are no real numbers
    fedzero.Optimiser(bounds=…, out=…)             ask and tell, for loops of your own in any number of processes
    fedzero.Method, SeededMethod, Task             bases of methods and tasks of your own
    fedzero.Shaper, Coder, Mixer, Combiner         bases of filters of your own
    fedzero.register(kind)                         make one known to this process; distributions use entry points
    fedzero.DeComFL, FedZO, FZooS, …               every method that is installed, by the name of its class

Names are imported when they are first used: torch and numba take seconds.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if (
    TYPE_CHECKING
):  # `python -m fedzero` takes the current folder off the path after this module: import as little as can be
    from typing import Any

__version__ = "0.2.0"

_PUBLIC = {
    "train": "fedzero.api.train",
    "finetune": "fedzero.api.finetune",
    "site_task": "fedzero.api.train",
    "accuracy": "fedzero.oracles.criteria",
    "run": "fedzero.api.runs",
    "Run": "fedzero.api.runs",
    "minimise": "fedzero.api.minimise",
    "Integer": "fedzero.api.minimise",
    "Choice": "fedzero.api.minimise",
    "Optimiser": "fedzero.api.ask_tell",
    "register": "fedzero.plugins",
    "FedzeroError": "fedzero.errors",
    "Tampered": "fedzero.ledger.store",
    "Method": "fedzero.algorithms.contract",
    "Federation": "fedzero.algorithms.contract",
    "SeededMethod": "fedzero.algorithms.seeded",
    "Task": "fedzero.tasks.contract",
    "Problem": "fedzero.tasks.contract",
    "BuildContext": "fedzero.tasks.contract",
    "Shaper": "fedzero.filters.contract",
    "Coder": "fedzero.filters.contract",
    "Mixer": "fedzero.filters.contract",
    "Combiner": "fedzero.filters.contract",
}
__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name[:1].isupper():
        for kind in import_module("fedzero.plugins").kinds("methods").values():
            if kind.type.__name__ == name:
                return kind.type
    raise AttributeError(f"module 'fedzero' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
