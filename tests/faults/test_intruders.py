"""Who has no certificate of this project never takes part, and disturbs nobody who has."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path

from federation import SERVER_JOB, SITE, SITE_JOB, Federation, processes_of, refused_in, until

from fedzero.deploy.flare import project as kits

ROOT, CERTIFICATE, KEY = "startup/rootCA.pem", "startup/client.crt", "startup/client.key"


def test_no_certificate_or_a_foreign_one(running: Federation) -> None:
    """Three processes knock: a site of another project that has the name of one of ours, the same when it is made to
    believe that this server is its own, and one without certificates."""
    done, job, assignment = len(running.rounds()), running.only(SERVER_JOB), (running.out / "sites.json").read_bytes()
    abroad = running.folder / "abroad"
    kits.provision(abroad, ["south"], port=running.project.port)
    foreign, disguised, naked = kits.kit_of(abroad, "south"), abroad / "disguised", abroad / "naked"
    for copy in (disguised, naked):
        shutil.copytree(foreign, copy)
    shutil.copy(running.kit("south") / ROOT, disguised / ROOT)
    for name in (ROOT, CERTIFICATE, KEY):
        (naked / name).unlink()
    try:
        knock(running, foreign, True)
        knock(running, disguised, True)
        assert knock(running, naked, False).wait(60) != 0, "its login failed"
        log = foreign / "log.txt"
        until(60, lambda: log.exists() and "VERIFY_FAILED" in log.read_text(), "a foreign site that finds no server")
        running.reaches(len(running.rounds()) + 10)
        assert processes_of(foreign, SITE), "it is still trying"
        assert processes_of(disguised, SITE), "it is still trying"
        assert not processes_of(abroad, SITE_JOB)
    finally:
        for process in processes_of(abroad):
            process.send(signal.SIGKILL)
    assert not refused_in(running.rounds()[done:])
    assert running.only(SERVER_JOB) == job, "nothing was begun anew"
    assert (running.out / "sites.json").read_bytes() == assignment


def knock(federation: Federation, kit: Path, secure: bool) -> subprocess.Popen[bytes]:
    values = [f"secure_train={str(secure).lower()}", "org=fedzero", "config_folder=config", "uid=south"]
    return federation.start(kit.name, SITE, "-m", kit, "-s", "fed_client.json", "--set", *values)


def test_what_the_port_says_to_strangers(running: Federation, tmp_path: Path) -> None:
    """Those who say nothing at all keep nobody waiting."""
    kits.provision(tmp_path, ["south"], port=running.project.port)
    port, job, done = running.project.port, running.only(SERVER_JOB), len(running.rounds())
    with ExitStack() as silent:
        for _ in range(5):
            silent.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        assert "certificate required" in greeting(port, None)
        assert "unknown ca" in greeting(port, kits.kit_of(tmp_path, "south"))
        assert greeting(port, running.kit("south")) == "welcome"
    with socket.create_connection(("127.0.0.1", port), 10) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
    assert not refused_in(running.reaches(len(running.rounds()) + 5)[done:])
    assert running.only(SERVER_JOB) == job


def greeting(port: int, kit: Path | None) -> str:
    """The alert that ends a TLS connection, or `welcome`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if kit is not None:
        context.load_cert_chain(kit / CERTIFICATE, kit / KEY)
    with socket.create_connection(("127.0.0.1", port), 10) as wire:
        wire.settimeout(8)  # less than strangers are given
        try:
            with context.wrap_socket(wire) as secured:
                secured.settimeout(2)
                try:
                    return "closed" if secured.recv(1) == b"" else "spoken to"
                except TimeoutError:
                    return "welcome"  # the server waits for what it has to say
        except ssl.SSLError as alert:
            return str(alert).replace("_", " ").lower()
