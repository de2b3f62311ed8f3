"""The page at which a browser joins a run: files of the folder `page`, with a content policy.

    /join                       the page, with the digest of all files in the addresses of the others
    /join/DIGEST/NAME           a file, kept by browsers for a year: another content has another digest

A page may ask its own gateway, and nobody else; it runs no code from elsewhere, and is not shown inside of others.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "page"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}
INDEX, PLACEHOLDER = "index.html", b"DIGEST"
POLICY = {
    "default-src": "'none'",
    "script-src": "'self' 'wasm-unsafe-eval'",
    "connect-src": "'self'",
    "worker-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {sources}" for name, sources in POLICY.items()),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), screen-wake-lock=(self)",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class File:
    """packed: by gzip."""

    kind: str
    content: bytes
    packed: bytes

    @staticmethod
    def of(path: Path, content: bytes) -> File:
        return File(KINDS[path.suffix], content, gzip.compress(content, 9, mtime=0))


@dataclass(frozen=True)
class Page:
    """All files of the page by name, and the digest of them."""

    digest: str
    files: dict[str, File]


@cache
def page() -> Page:
    found = {path.name: path for path in sorted(FOLDER.iterdir()) if path.suffix in KINDS}
    contents = {name: path.read_bytes() for name, path in found.items()}
    digest = sha256(b"".join(sha256(content).digest() for content in contents.values())).hexdigest()[:16]
    contents[INDEX] = contents[INDEX].replace(PLACEHOLDER, digest.encode())
    return Page(digest, {name: File.of(found[name], content) for name, content in contents.items()})


async def join(request: Request) -> Response:
    found = page()
    tag = f'"{found.digest}"'
    headers = HEADERS | {"cache-control": "no-cache", "etag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return _sent(request, found.files[INDEX], headers)


async def file(request: Request) -> Response:
    found, digest, name = page(), request.path_params["digest"], request.path_params["name"]
    if digest != found.digest or name not in found.files or name == INDEX:
        return PlainTextResponse("no such file\n", 404, headers=HEADERS | {"cache-control": "no-store"})
    return _sent(request, found.files[name], HEADERS | {"cache-control": FOR_EVER})


def _sent(request: Request, file: File, headers: dict[str, str]) -> Response:
    """Packed, if the browser takes it."""
    headers = headers | {"vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, media_type=file.kind, headers=headers | {"content-encoding": "gzip"})
    return Response(file.content, media_type=file.kind, headers=headers)


ROUTES = (Route("/join", join), Route("/join/{digest}/{name}", file))
