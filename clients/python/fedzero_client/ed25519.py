"""Ed25519 (RFC 8032) in plain Python: signatures without a library beside the standard one.

Not in constant time: whoever measures the time of many signatures on this machine may learn the key.

Points of −x² + y² = 1 + d x² y² over 2²⁵⁵ − 19 in extended coordinates (X, Y, Z, T), x = X/Z, y = Y/Z, xy = T/Z.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha512

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)
Point = tuple[int, int, int, int]
ZERO: Point = (0, 1, 1, 0)


def _add(p: Point, q: Point) -> Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def _times(scalar: int, point: Point) -> Point:
    found = ZERO
    while scalar:
        if scalar & 1:
            found = _add(found, point)
        point = _add(point, point)
        scalar >>= 1
    return found


def _x(y: int, sign: int) -> int | None:
    """The x of a point; None: there is none."""
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    if not square:
        return None if sign else 0
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P:
        return None
    return P - x if x & 1 != sign else x


@cache
def _base() -> tuple[Point, ...]:
    """B, 2B, 4B, …: a multiple of B is a sum of some."""
    y = 4 * pow(5, P - 2, P) % P
    x = _x(y, 0)
    assert x is not None
    points: list[Point] = [(x, y, 1, x * y % P)]
    for _ in range(255):
        points.append(_add(points[-1], points[-1]))
    return tuple(points)


def _of_base(scalar: int) -> Point:
    found = ZERO
    for i, point in enumerate(_base()):
        if scalar >> i & 1:
            found = _add(found, point)
    return found


def _packed(point: Point) -> bytes:
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _point(data: bytes) -> Point | None:
    number = int.from_bytes(data, "little")
    y = number & ((1 << 255) - 1)
    x = _x(y, number >> 255)
    return None if x is None else (x, y, 1, x * y % P)


def _secret(seed: bytes) -> tuple[int, bytes]:
    hashed = sha512(seed).digest()
    scalar = int.from_bytes(hashed[:32], "little") & (1 << 254) - 8 | 1 << 254
    return scalar, hashed[32:]


def _reduced(*parts: bytes) -> int:
    return int.from_bytes(sha512(b"".join(parts)).digest(), "little") % L


def public_of(seed: bytes) -> bytes:
    """The public key, 32 bytes, of a secret of 32 bytes."""
    return _packed(_of_base(_secret(seed)[0]))


def sign(seed: bytes, message: bytes) -> bytes:
    """64 bytes."""
    scalar, prefix = _secret(seed)
    public = _packed(_of_base(scalar))
    r = _reduced(prefix, message)
    nonce = _packed(_of_base(r))
    return nonce + ((r + _reduced(nonce, public, message) * scalar) % L).to_bytes(32, "little")


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    if len(public) != 32 or len(signature) != 64:
        return False
    key, nonce, s = _point(public), _point(signature[:32]), int.from_bytes(signature[32:], "little")
    if key is None or nonce is None or s >= L:
        return False
    right = _add(nonce, _times(_reduced(signature[:32], public, message), key))
    return _packed(_of_base(s)) == _packed(right)
