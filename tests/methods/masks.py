"""A gathering as a secure sum will be, small: masks between every two hosts, which a last phase takes away from those
who were lost. For tests: its group is far too small to hide anything.

    phase 0   host → A_h = g^{a_h}                          server → everybody's A
    phase 1   host → Σ_i w_i v_i + Σ_{j>h} m_hj − Σ_{j<h} m_jh   mod 2⁶⁴, m from the key A_j^{a_h}
    phase 2   host → its keys with those who sent A and no sum     (only if somebody was lost)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedzero.errors import Refused
from fedzero.links import Gathering, Total
from fedzero.links.contract import Contribution
from fedzero.links.gathering import AtHost, AtServer, HostContext, ServerContext

PRIME, GENERATOR = (1 << 127) - 1, 3
FINE = 1 << 30
"""Values are integers of this part."""
WIDTH = 16
encode = msgspec.msgpack.encode
U64 = NDArray[np.uint64]


class Masks(Gathering, tag="test-masks"):
    """Masks between every two hosts."""

    least: int = 2
    """Hosts that must be left."""

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        me, weights = msgspec.msgpack.decode(host.opening, type=tuple[str, dict[int, int]])
        secret = int.from_bytes(host.entropy(WIDTH), "little")
        publics = msgspec.msgpack.decode((yield _written(pow(GENERATOR, secret, PRIME))), type=dict[str, bytes])
        keys = {other: pow(_read(public), secret, PRIME) for other, public in publics.items() if other != me}
        total = sum((_fixed(mine[client], weight) for client, weight in weights.items()), _nothing(host.numbers))
        for other, key in keys.items():
            total = total + _mask(key, len(total)) if me < other else total - _mask(key, len(total))
        lost = msgspec.msgpack.decode((yield total.tobytes()), type=list[str])
        yield encode({other: _written(keys[other]) for other in lost})

    def at_server(self, hosts: Mapping[str, tuple[int, ...]], server: ServerContext) -> AtServer:
        weights = {host: {client: server.weights[client] for client in mine} for host, mine in hosts.items()}
        answers = yield {host: encode((host, weights[host])) for host in hosts}
        publics = {host: answer for host, answer in answers.items() if isinstance(answer, bytes)}
        self._expect_enough(publics)
        answers = yield {host: encode(publics) for host in publics}
        sums = {host: np.frombuffer(a, np.uint64) for host, a in answers.items() if isinstance(a, bytes)}
        self._expect_enough(sums)
        total = sum(sums.values(), _nothing(server.numbers))
        if lost := sorted(publics.keys() - sums.keys()):
            for host, answer in (yield {host: encode(lost) for host in sums}).items():
                if isinstance(answer, Exception):
                    raise Refused(f"{host} was lost with the keys of others")
                for other, key in msgspec.msgpack.decode(answer, type=dict[str, bytes]).items():
                    mask = _mask(_read(key), len(total))
                    total = total - mask if host < other else total + mask
        clients = tuple(sorted(client for host in sums for client in hosts[host]))
        *values, loss = (total.view(np.int64) / FINE).tolist()
        return Total(np.array(values), sum(server.weights[client] for client in clients), clients, loss)

    def _expect_enough(self, left: Mapping[str, object]) -> None:
        if len(left) < self.least:
            raise Refused(f"only {len(left)} hosts are left of at least {self.least}")


def _fixed(given: Contribution, weight: int) -> U64:
    values = [*(weight * given.values.astype(np.float64)), given.loss or 0.0]
    return np.rint(np.array(values) * FINE).astype(np.int64).view(np.uint64)


def _nothing(count: int) -> U64:
    return np.zeros(count + 1, np.uint64)


def _mask(key: int, count: int) -> U64:
    return np.frombuffer(hashlib.shake_256(_written(key)).digest(8 * count), np.uint64)


def _written(number: int) -> bytes:
    return number.to_bytes(WIDTH, "little")


def _read(data: bytes) -> int:
    return int.from_bytes(data, "little")
