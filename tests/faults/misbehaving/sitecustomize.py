"""Sites that misbehave. Python imports this by itself where it is on the path; `deploy.site` is changed once loaded.

In the folder FEDZERO_FAULTS: `pace` holds seconds that every turn takes longer, `spoil-SITE` how a site misbehaves.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ.get("FEDZERO_FAULTS", "."))


def told(name: str, default: str) -> str:
    try:
        return (FOLDER / name).read_text()
    except FileNotFoundError:
        return default


def change_site(site: ModuleType) -> None:
    honest_init, honest_exchange = site.SiteRun.__init__, site.SiteRun.exchange
    honest_measure, honest_answer = site.SiteRun.measure, site.Site.answer

    def init(run: Any, order: Any, settings: Any, keep: Path, *more: Any) -> None:
        run.called = keep.parent.parent.name
        while told(f"spoil-{run.called}", "honest") == "hang in prepare":
            time.sleep(0.2)
        honest_init(run, order, settings, keep, *more)

    def measure(run: Any, order: Any) -> Any:
        answer = honest_measure(run, order)
        return MEASURED.get(told(f"spoil-{run.called}", "honest"), lambda found: found)(answer)

    def answer(here: Any, data: bytes) -> bytes:
        """All that a site says goes through here."""
        honest = honest_answer(here, data)
        return ANSWERS.get(told(f"spoil-{here.keep.parent.parent.name}", "honest"), lambda found: found)(honest)

    def exchange(run: Any, order: Any) -> Any:
        time.sleep(float(told("pace", "0")))
        how = told(f"spoil-{run.called}", "honest")
        if how == "exit":
            os._exit(1)
        if how == "corrupt":
            corrupt(run)
            (FOLDER / f"spoil-{run.called}").write_text("corrupted")
        answer = honest_exchange(run, order)
        if how not in SPOILT:
            return answer
        return type(answer)({client: SPOILT[how](reply) for client, reply in answer.replies.items()}, answer.failed)

    site.SiteRun.__init__, site.SiteRun.exchange = init, exchange
    site.SiteRun.measure, site.Site.answer = measure, answer


def corrupt(run: Any) -> None:
    """One bit of one weight."""
    tensor = next(iter(run.replica.state.params.tensors.values()))
    bits = tensor.view(-1).numpy().view("uint32")
    bits[0] ^= 1


def changed(reply: bytes, **fields: Any) -> bytes:
    import msgspec

    from fedzero.protocol.messages import decode_reply, encode_reply

    return encode_reply(msgspec.structs.replace(decode_reply(reply, len(reply)), **fields))


def nan(reply: bytes) -> bytes:
    import numpy as np

    return changed(reply, values=np.full(4, np.nan, "<f4").tobytes())


def short(reply: bytes) -> bytes:
    return changed(reply, values=bytes(12))


def another_round(reply: bytes) -> bytes:
    from fedzero.protocol.messages import decode_reply

    return changed(reply, round=decode_reply(reply, len(reply)).round + 1)


def huge(reply: bytes) -> bytes:
    import numpy as np

    return changed(reply, values=np.full(4, 1e30, "<f4").tobytes())


def another_model(reply: bytes) -> bytes:
    return changed(reply, digest=b"\xff" * 8)


SPOILT = {
    "nan": nan,
    "short": short,
    "another round": another_round,
    "10 MB": lambda reply: bytes(10_000_000),
    "1e30": huge,
    "another model": another_model,
}


def measured(**fields: Any) -> Any:
    import msgspec

    return lambda answer: msgspec.structs.replace(answer, **fields)


def too_good(answer: Any) -> Any:
    return measured(metrics=type(answer.metrics)(-1e9, 1.0, {"\x1b[2J": 1.0}))(answer)


MEASURED = {
    "cannot evaluate": measured(metrics=None),
    "too good": too_good,
    "another model": measured(model=b"\xff" * 8),
}


def failed(reason: str) -> bytes:
    from fedzero.engines.remote.messages import Failed, encode

    return encode(Failed(reason))


ANSWERS = {
    "markup": lambda answer: failed("[/x] [bold]\x1b[2J\x07" + "y" * 3000),
    "nested": lambda answer: b"\x91" * 1500,
    "oversize": lambda answer: bytes(20_000_000),
}


def send_replies_twice(core_cell: ModuleType) -> None:
    """Whatever this process answers leaves it twice, under the same number."""
    once = core_cell.CoreCell._send_reply

    def twice(cell: Any, reply: Any, endpoint: Any) -> str:
        import copy

        if told(f"spoil-{cell.get_fqcn().split('.')[0]}", "honest") == "twice":
            once(cell, copy.deepcopy(reply), endpoint)
        return once(cell, reply, endpoint)

    core_cell.CoreCell._send_reply = twice


def make_server_hostile(engine: ModuleType) -> None:
    from hostile_server import change_engine

    change_engine(engine, FOLDER, told)


CHANGES = {
    "fedzero.deploy.site.site": change_site,
    "fedzero.engines.remote.engine": make_server_hostile,
    "nvflare.fuel.f3.cellnet.core_cell": send_replies_twice,
}


class Changing(importlib.abc.MetaPathFinder):
    """Finds nothing itself; modules to be changed are changed when they have been loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name not in CHANGES:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            load = found.loader.exec_module

            def loaded(module: ModuleType) -> None:
                load(module)
                CHANGES[name](module)

            found.loader.exec_module = loaded  # type: ignore[method-assign]
        return found


sys.meta_path.insert(0, Changing())
