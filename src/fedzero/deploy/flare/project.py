"""A project: certificates and start kits, made by FLARE's own provisioning; called again it adds sites, same authority.

PROJECT/federation.json     host, port, sites
PROJECT/connected.json      sites that are connected, while a server runs
PROJECT/kits/NAME           one folder a machine: server, every site, and the supervisor's (stays with the server)
PROJECT/authority/          keys of the certificate authority: whoever has them can make sites; see authority.py
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from fedzero.deploy.flare import address, authority
from fedzero.errors import FedzeroError
from fedzero.model import files

ORGANISATION, SERVER, SUPERVISOR = "fedzero", "server", "supervisor@fedzero.local"
PROJECT, CONNECTED_SITES, ROOT_DAYS = "federation.json", "connected.json", 3650
SETTINGS = "fedzero.toml"
"""In a site kit's local/: what the site decides for itself."""
HEARTBEAT, GONE_AFTER, JOB_HEARTBEAT = 6, 20, 30.0
"""Seconds between two heartbeats of a site (of 2 KB, both ways), and after how many without one FLARE takes it for
gone; seconds between those of its process for a job."""
PACKAGE = "fedzero.deploy.flare."
NAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")


class Project(Struct, frozen=True):
    """What `federation.json` holds."""

    host: str
    port: int
    sites: tuple[str, ...]

    @staticmethod
    def of(folder: Path) -> Project:
        if not (folder / PROJECT).exists():
            raise FedzeroError(f"{folder} is not a project: `fedzero provision {folder} --site NAME` makes one")
        found = files.decoded(folder / PROJECT, Project)
        address.check(found.host, found.port)
        return found


def kit_of(folder: Path, name: str) -> Path:
    return folder / "kits" / name


def provision(folder: Path, sites: Sequence[str], host: str | None = None, port: int | None = None) -> Project:
    """Make a project, or add sites to one. Of the kits, those of these sites are made where they are not there."""
    for site in sites:
        if not NAME.match(site) or site == SERVER:
            raise FedzeroError(f"{site!r} cannot be the name of a site: use small letters, digits and hyphens")
    exists = (folder / PROJECT).exists()
    before = Project.of(folder) if exists else Project("localhost", 8002, ())
    wanted = (before.host if host is None else host, before.port if port is None else port)
    address.check(*wanted)
    if exists and wanted != (before.host, before.port):
        raise FedzeroError(f"this project's server is {before.host}:{before.port}: another server needs a new project")
    project = Project(*wanted, tuple(dict.fromkeys([*before.sites, *sites])))
    if not project.sites:
        raise FedzeroError("a federation has at least one site: --site NAME")
    if any(c.isspace() for c in str(folder.resolve())):
        raise FedzeroError(f"{folder.resolve()} contains a blank, which FLARE cannot handle: choose another folder")
    names = [*dict.fromkeys(sites), *(() if exists else (SERVER, SUPERVISOR))]
    if missing := [name for name in names if not kit_of(folder, name).exists()]:
        _make_kits(folder, project, missing)
    files.write(folder / PROJECT, msgspec.json.format(msgspec.json.encode(project)) + b"\n")
    return project


def _make_kits(folder: Path, project: Project, names: Sequence[str]) -> None:
    """Kits of some of the project, signed by its authority. FLARE's builders always make the server's and the
    supervisor's too, again with the same certificates; these are not taken unless they are asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    authority.forget(folder)  # or a site that is named again would get the key that was handed out before
    fresh = _provisioned(folder, project, [name for name in names if name in project.sites])
    try:
        for name in names:
            made, there = fresh / name, kit_of(folder, name)
            _configure(made, there, project)
            _describe(made, project)
            made.chmod(0o700)
            for key in made.glob("startup/*.key"):
                key.chmod(0o600)
            there.parent.mkdir(exist_ok=True)
            made.rename(there)
    finally:
        shutil.rmtree(fresh)
        authority.forget(folder)


def _provisioned(folder: Path, project: Project, sites: Sequence[str]) -> Path:
    """A new folder with FLARE's kits of the server, the supervisor and some sites."""
    try:
        from nvflare.lighter.constants import CtxKey
        from nvflare.lighter.entity import Project as FlareProject
        from nvflare.lighter.impl.cert import CertBuilder
        from nvflare.lighter.impl.static_file import StaticFileBuilder
        from nvflare.lighter.impl.workspace import WorkspaceBuilder
        from nvflare.lighter.provisioner import Provisioner
    except ImportError:
        raise FedzeroError("a federation needs NVIDIA FLARE: pip install 'fedzero[nvflare]'") from None
    made = FlareProject("authority", "fedzero federation", props={"api_version": 3})
    names = sorted(set(address.LOCAL) - {project.host}) if project.host in address.LOCAL else []
    ports = {"fed_learn_port": project.port, "admin_port": project.port}
    made.set_server(SERVER, ORGANISATION, {**ports, "default_host": project.host, "host_names": names})
    for site in sites:
        made.add_client(site, ORGANISATION, {})
    made.add_admin(SUPERVISOR, ORGANISATION, {"role": "project_admin"})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="tcp"),
        CertBuilder(root_valid_days=ROOT_DAYS),
    ]
    found = Provisioner(str(folder), builders).provision(made, logger=logging.getLogger(__name__))
    if found.get(CtxKey.BUILD_ERROR):
        raise FedzeroError(f"the kits of {folder} could not be made")
    return Path(found[CtxKey.CURRENT_PROD_DIR])


READ_ME, THEIRS = "README.md", "readme.txt"
SITE_KIT = """\
# The kit of the site {name}

It connects to the server {host}:{port}. Bring this folder to the machine of the site over a channel that you trust:
`startup/client.key` is the private key of the site. There, with the same release of fedzero as the server's:

    pip install 'fedzero[nvflare]'
    fedzero join {name} --data FOLDER

`fedzero join` runs until Ctrl-C, and the same command rejoins. Its options are kept in `local/fedzero.toml` and never
leave the site. `fedzero join --help` lists them. What goes wrong is in `console.txt` and `log.txt`.

The scripts in `startup` are those of NVIDIA FLARE. fedzero does not use them.
"""
SERVER_KIT = """\
# A kit of the server's machine

It stays where it is: `fedzero serve`, with the folder of the project, uses it. The folder `startup` contains a private
key. Its scripts are those of NVIDIA FLARE. fedzero does not use them.
"""


def _describe(kit: Path, project: Project) -> None:
    """Our words in the place of FLARE's, whose scripts nobody should run."""
    for place in (kit, kit / "startup"):
        (place / THEIRS).unlink(missing_ok=True)
    text = SITE_KIT if kit.name in project.sites else SERVER_KIT
    files.write(kit / READ_ME, text.format(name=kit.name, host=project.host, port=project.port))


COMMUNICATION = {
    "format_version": 2,
    "streaming_retry_timeout": 1.0,
    "streaming_retry_wait": 0.5,
    "streaming_chunk_size": 1 << 17,
}
"""Otherwise FLARE keeps a timer of 65 s and a buffer of a megabyte for every message of its own, a few a second."""
LOG_FILE = {"class": "logging.handlers.RotatingFileHandler", "level": "WARNING", "formatter": "line"}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(name)s %(levelname)s %(message)s"}},
    "handlers": {"file": {**LOG_FILE, "filename": "log.txt", "mode": "a", "maxBytes": 2_000_000, "backupCount": 2}},
    "loggers": {"root": {"level": "WARNING", "handlers": ["file"]}},
}
"""At its default FLARE logs megabytes."""
MAY = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")


def _configure(kit: Path, there: Path, project: Project) -> None:
    """Our settings: only classes of this package, no shipped code, short heartbeats, quiet logs, nothing in /tmp.
    there: where the kit will be."""
    if kit.name == SUPERVISOR:
        return
    local = kit / "local"
    resources = json.loads(files.read(local / "resources.json.default", files.SMALL))
    resources |= {"class_list_enforcement_mode": "enforce", "class_allow_list": [PACKAGE]}
    parts = {part["id"]: part for part in resources["components"]}
    if kit.name == SERVER:
        resources["servers"][0] |= {"heart_beat_timeout": GONE_AFTER, "max_num_clients": 1000}
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(there.resolve() / "snapshots")
        parts["job_manager"]["args"]["uri_root"] = str(there.resolve() / "jobs")
        parts["job_scheduler"]["args"] = {
            "max_jobs": 8, "min_schedule_interval": 1.0, "max_schedule_interval": 2.0, "max_schedule_count": 10,
        }  # fmt: skip
        parts.pop("log_receiver", None)
        start = kit / "startup" / "fed_server.json"
        if project.host in address.LOCAL:  # else FLARE listens on every address
            listening = files.read(start, files.SMALL).decode()
            files.write(start, listening.replace(f'"{SERVER}:{project.port}"', f'"127.0.0.1:{project.port}"'))
    else:
        resources["allow_log_streaming"] = False
        parts["process_launcher"]["path"] = f"{PACKAGE}launcher.JobLauncher"
        parts.pop("site_log_streamer", None)
    resources["components"] = list(parts.values())
    rights = {**dict.fromkeys(MAY, "any"), "shell_commands": "none", "byoc": "none"}
    policy = json.loads(files.read(local / "authorization.json.default", files.SMALL))
    written = {
        "resources": resources,
        "authorization": policy | {"permissions": {"project_admin": rights}},
        "comm_config": COMMUNICATION,
        "log_config": LOGGING,
    }
    for name, content in written.items():
        files.write(local / f"{name}.json", json.dumps(content, indent=1) + "\n")
