"""The schemas of fedzero-device/1, made of the types with which the gateway reads and writes.

    docs/schemas/fedzero-device-1.cddl            every frame, body, plan and inner message (RFC 8610)
    docs/schemas/fedzero-device-1.asyncapi.json   the web socket (AsyncAPI 3.0)
    docs/schemas/fedzero-device-1.openapi.json    polling, about and join (OpenAPI 3.1)

python tools/device_schemas.py          writes them; --check: exit status 1 if a file is another one
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.codes import Code
from fedzero.engines.devices.plan import (
    DevicePlan,
    PlannedGraph,
    PlannedGraphTask,
    PlannedMethod,
    PlannedPrivacy,
    PlannedTask,
    PlannedTensor,
    PrivatePlan,
)
from fedzero.model.updates import Seeded
from fedzero.protocol.messages import Reply, Work

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
NAME = "fedzero-device-1"
FROM_DEVICE, FROM_GATEWAY = get_args(m.FromDevice), get_args(m.FromGateway)
BODIES = (m.OrderBody, m.UpdatesBody, m.CheckpointBody)
PLANS = (
    DevicePlan,
    PrivatePlan,
    PlannedTensor,
    PlannedMethod,
    PlannedTask,
    PlannedGraphTask,
    PlannedGraph,
    PlannedPrivacy,
)
TASKS = (PlannedTask, PlannedGraphTask)
"""What stands for `Any`: the field `task` of a plan, whose first number says which."""
INNER = (Work, Seeded, Reply)
ALL: tuple[type[msgspec.Struct], ...] = (*FROM_DEVICE, *FROM_GATEWAY, *BODIES, *PLANS, *INNER)
OMITTED = {"Work": {"counted"}, "Seeded": {"clients", "others"}, "Reply": {"memory"}}
"""Fields that are of other clients than devices."""
NATURALS = {2**63 - 1: "nat", 2**32 - 1: "nat32"}
WORDS = "A frame is one msgpack value. In these schemas bytes are base64 texts, and a float is a float of 64 bits."


def fields_of(struct: type[msgspec.Struct]) -> tuple[int | None, list[inspect.Field]]:
    """The tag, and the fields in order."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType) and info.array_like
    assert info.tag is None or isinstance(info.tag, int)
    return info.tag, [field for field in info.fields if field.name not in OMITTED.get(struct.__name__, ())]


# ---- CDDL


def cddl() -> str:
    lines = [
        "; fedzero-device/1 (docs/device-protocol.md), made by tools/device_schemas.py from the types of the gateway.",
        "; The encoding is msgpack, and not CBOR: uint, bytes (bin), text (str), float64, bool, nil and arrays are",
        "; msgpack's, in their shortest form. Elements behind the last field of an array are ignored.",
        "",
        "frame = from-device / from-gateway",
        f"from-device = {' / '.join(each.__name__ for each in FROM_DEVICE)}",
        f"from-gateway = {' / '.join(each.__name__ for each in FROM_GATEWAY)}",
        *(f"{name} = 0..{top}" for top, name in NATURALS.items()),
        "nat-or-nil = nat / nil",
        f"task = {' / '.join(each.__name__ for each in TASKS)}",
        "",
    ]
    for struct in ALL:
        tag, fields = fields_of(struct)
        parts = ([] if tag is None else [f"{tag}"]) + [_field(field) for field in fields]
        lines.append(f"{struct.__name__} = [{', '.join(parts)}]")
    return "\n".join(lines) + "\n"


def _field(field: inspect.Field) -> str:
    return f"{'' if field.required else '? '}{field.name}: {_cddl(field.type)}"


def _cddl(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.AnyType):
        return "task"
    if isinstance(kind, inspect.StructType):
        return str(kind.cls.__name__)
    if isinstance(kind, inspect.IntType):
        assert kind.ge in (0, None)
        top = kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else None
        return "uint" if top is None else NATURALS[top]
    if isinstance(kind, inspect.BytesType):
        low, high = kind.min_length, kind.max_length
        if low is None:
            return "bytes"
        return f"bytes .size {low}" if low == high else f"bytes .size ({low}..{high})"
    if isinstance(kind, inspect.UnionType):
        updates = [each for each in kind.types if isinstance(each, inspect.StructType)]
        return "Seeded" if updates else "-or-".join(map(_cddl, kind.types))  # a rule of its own: validators need it
    if isinstance(kind, inspect.VarTupleType):
        return f"[* {_cddl(kind.item_type)}]"
    simple = {inspect.StrType: "text", inspect.FloatType: "float64", inspect.BoolType: "bool", inspect.NoneType: "nil"}
    return simple[type(kind)]


# ---- JSON Schema


def schemas() -> dict[str, Any]:
    """By name, JSON Schema 2020-12 of the arrays."""
    return {struct.__name__: _array(struct) for struct in ALL}


def _array(struct: type[msgspec.Struct]) -> dict[str, Any]:
    tag, fields = fields_of(struct)
    items = [] if tag is None else [{"title": "tag", "const": tag}]
    items += [{"title": field.name, **_json(field.type)} for field in fields]
    found: dict[str, Any] = {"title": struct.__name__, "type": "array", "prefixItems": items}
    found["minItems"] = len(items) - sum(not field.required for field in fields)
    if struct.__doc__ and struct.__doc__[0].isalpha() and struct.__module__ == m.__name__:
        found["description"] = " ".join(struct.__doc__.split())
    return found


def _json(kind: inspect.Type) -> dict[str, Any]:
    if isinstance(kind, inspect.AnyType):
        return {"anyOf": [{"$ref": f"#/components/schemas/{each.__name__}"} for each in TASKS]}
    if isinstance(kind, inspect.StructType):
        return {"$ref": f"#/components/schemas/{kind.cls.__name__}"}
    if isinstance(kind, inspect.IntType):
        top = kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else None
        return {"type": "integer", "minimum": 0} | ({} if top is None else {"maximum": top})
    if isinstance(kind, inspect.BytesType):
        found: dict[str, Any] = {"type": "string", "contentEncoding": "base64"}
        if kind.min_length is not None:
            found |= {"minLength": _base64(kind.min_length), "maxLength": _base64(kind.max_length or 0)}
        return found
    if isinstance(kind, inspect.UnionType):
        if any(isinstance(each, inspect.StructType) for each in kind.types):
            return {"$ref": "#/components/schemas/Seeded"}
        return {"anyOf": [_json(each) for each in kind.types]}
    if isinstance(kind, inspect.VarTupleType):
        return {"type": "array", "items": _json(kind.item_type)}
    simple = {inspect.StrType: "string", inspect.FloatType: "number", inspect.BoolType: "boolean"}
    return {"type": "null" if isinstance(kind, inspect.NoneType) else simple[type(kind)]}


def _base64(count: int) -> int:
    return 4 * -(-count // 3)


# ---- transports


def _info(what: str) -> dict[str, Any]:
    return {"title": f"fedzero-device/1: {what}", "version": "1", "description": WORDS}


def asyncapi() -> dict[str, Any]:
    """Web sockets: each binary message is one frame."""

    def messages(structs: Sequence[type]) -> dict[str, Any]:
        return {each.__name__: {"$ref": f"#/components/messages/{each.__name__}"} for each in structs}

    def operation(action: str, structs: Sequence[type]) -> dict[str, Any]:
        named = [{"$ref": f"#/channels/socket/messages/{each.__name__}"} for each in structs]
        return {"action": action, "channel": {"$ref": "#/channels/socket"}, "messages": named}

    frames = (*FROM_DEVICE, *FROM_GATEWAY)
    payloads = {
        each.__name__: {
            "contentType": "application/msgpack",
            "payload": {"$ref": f"#/components/schemas/{each.__name__}"},
        }
        for each in frames
    }
    return {
        "asyncapi": "3.0.0",
        "info": _info("web sockets"),
        "defaultContentType": "application/msgpack",
        "servers": {
            "gateway": {
                "host": "{host}",
                "protocol": "wss",
                "description": "ws on the same machine only",
                "variables": {"host": {"description": "host and port of a ticket"}},
            }
        },
        "channels": {
            "socket": {
                "address": "/fedzero/1/socket",
                "messages": messages(frames),
                "bindings": {"ws": {"method": "GET"}},
            }
        },
        "operations": {"fromDevice": operation("receive", FROM_DEVICE), "fromGateway": operation("send", FROM_GATEWAY)},
        "components": {"messages": payloads, "schemas": schemas()},
    }


def openapi() -> dict[str, Any]:
    """Polling, about and join."""
    frames = {
        "description": "frames one after the other, each after its length (u32, little-endian); none: empty",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
    text = {"text/plain": {"schema": {"type": "string"}}}
    session = {
        "name": "fedzero-session",
        "in": "header",
        "required": False,
        "description": "that of the first response; a request without it begins a session",
        "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    }
    first = {key: session[key] for key in ("description", "schema")} | {"description": "in the first response alone"}
    refused = {
        "403": {"description": "the origin may not connect", "content": text},
        "408": {"description": "the body took too long", "content": text},
        "503": {"description": "too many connections", "content": text},
    }
    about = {
        "type": "object",
        "required": ["protocol", "run", "places", "fingerprint"],
        "properties": {
            "protocol": {"const": "fedzero-device/1"},
            "run": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            "places": {"type": "integer", "minimum": 1},
            "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        },
    }
    ok = {"description": "what this gateway is", "content": {"application/json": {"schema": about}}}
    words = {"description": "words for people", "content": text}
    errors = {"type": "integer", "enum": [int(code) for code in Code], "description": "codes of Error"}
    return {
        "openapi": "3.1.0",
        "info": _info("polling"),
        "paths": {
            "/fedzero/1/poll": {
                "post": {
                    "operationId": "poll",
                    "summary": "Send up to 8 frames, and wait for frames of the gateway.",
                    "parameters": [session],
                    "requestBody": {"required": False, **frames},
                    "responses": {"200": {**frames, "headers": {"fedzero-session": first}}, **refused},
                }
            },
            "/fedzero/1/about": {"get": {"operationId": "about", "responses": {"200": ok}}},
            "/join": {"get": {"operationId": "join", "responses": {"200": words}}},
        },
        "components": {"schemas": schemas() | {"Code": errors}},
    }


def files() -> dict[str, str]:
    documents = {"asyncapi": asyncapi(), "openapi": openapi()}
    found = {f"{NAME}.{kind}.json": json.dumps(value, indent=1) + "\n" for kind, value in documents.items()}
    return {f"{NAME}.cddl": cddl(), **found}


def main(arguments: Sequence[str]) -> int:
    if "--check" in arguments:
        wrong = [name for name, text in files().items() if (FOLDER / name).read_text(encoding="utf-8") != text]
        print("\n".join(f"docs/schemas/{name} is not what tools/device_schemas.py makes" for name in wrong))
        return int(bool(wrong))
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
