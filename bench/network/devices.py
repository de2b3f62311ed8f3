"""Bytes of a device through its socket, TLS records included: python bench/network/devices.py

A device takes part in two runs, of 10 and of 60 rounds, through a proxy that counts what passes. The difference,
divided by 50, is what a round takes: without handshakes, enrolment and the plan. P = 10, nothing missed.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.signing import Signer
from fedzero.engines.devices.ticket import address
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

CLIENT = Path(__file__).parents[2] / "clients" / "python"
ROUNDS = 10, 60


class Counting:
    """A proxy; up, down: bytes so far."""

    def __init__(self, to: int):
        self.up = self.down = 0
        self._to, self._listening = to, socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            inner, _ = self._listening.accept()
            try:
                outer = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the gateway does not listen yet
                inner.close()
                continue
            for source, sink, name in ((inner, outer, "up"), (outer, inner, "down")):
                threading.Thread(target=self._pass, args=(source, sink, name), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):  # closed by the other direction
            while data := source.recv(1 << 16):
                setattr(self, name, getattr(self, name) + len(data))
                sink.sendall(data)
        sink.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    signed = made.add_extension(names, False).sign(key, hashes.SHA256())
    found = folder / "certificate.pem", folder / "key.pem"
    found[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    found[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return found


def measured(way: str, rounds: int) -> tuple[int, int]:
    """(up, down): bytes of a run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw = np.random.default_rng(0)
        x, y = draw.normal(size=(64, 8)).astype(np.float32), draw.integers(0, 3, 64)
        np.savez(folder / "rows.npz", x=x, y=y)
        np.savetxt(folder / "rows.csv", np.column_stack([x, y]), fmt=["%.9g"] * 8 + ["%d"], delimiter=",")
        chain, key = certificate(folder)
        port = socket.create_server(("127.0.0.1", 0)).getsockname()[1]
        engine = {"kind": "devices", "listen": f"127.0.0.1:{port}", "certificate": str(chain), "key": str(key)}
        table = {
            "name": "bytes",
            "rounds": rounds,
            "evaluate_every": rounds,
            "algorithm": {"kind": "decomfl", "rate": 0.01, "directions": 10, "distribution": "rademacher"},
            "task": {"kind": "devices", "widths": [8, 3], "test": str(folder / "rows.npz")},
            "federation": {"clients": 1, "cohort": 1},
            "engine": engine,
        }
        run, proxy = folder / "run", Counting(port)
        registry = Registry(run)
        where = address(
            f"https://127.0.0.1:{proxy.port}", registry.run, registry.ticket(1), Signer(registry.keys).fingerprint
        )
        environment = os.environ | {"PYTHONPATH": str(CLIENT), "SSL_CERT_FILE": str(chain)}
        command = [sys.executable, "-m", "fedzero_client", "join", where, "--data", str(folder / "rows.npz")]
        command += ["--folder", str(folder / "d"), "--way", way]
        if way == "tab":
            command = [sys.executable, str(Path(__file__).with_name("tab.py")), where, str(folder / "rows.csv")]
        device = subprocess.Popen(command, env=environment)
        try:
            session.start(recipes.decode(table), run, Environment(), Silent())
            assert device.wait(60) == 0
        finally:
            device.kill()
        return proxy.up, proxy.down


def main() -> None:
    for way in sys.argv[1:] or ("socket", "poll", "tab"):
        few, many = (measured(way, rounds) for rounds in ROUNDS)
        up, down = ((b - a) / (ROUNDS[1] - ROUNDS[0]) for a, b in zip(few, many, strict=True))
        print(f"{way}: {up:.1f} bytes up, {down:.1f} down a round; a run of {ROUNDS[0]} rounds {few[0]} and {few[1]}")


if __name__ == "__main__":
    main()
