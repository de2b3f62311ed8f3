"""The structures of fedzero_core.h, by ctypes."""

from __future__ import annotations

import ctypes as C


class Tensor(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("shape", C.POINTER(C.c_uint32)),
        ("axes", C.c_uint32),
        ("values", C.c_void_p),
        ("momentum", C.c_void_p),
    ]


class Term(C.Structure):
    _fields_ = [("key", C.c_uint64), ("coefficient", C.c_float)]


class Step(C.Structure):
    _fields_ = [
        ("terms", C.POINTER(Term)),
        ("count", C.c_uint32),
        ("rate", C.c_float),
        ("beta", C.c_float),
        ("rest", C.c_float),
    ]


class Points(C.Structure):
    _fields_ = [
        ("tensors", C.POINTER(Tensor)),
        ("tensor_count", C.c_uint32),
        ("stream", C.c_int),
        ("terms", C.POINTER(Term)),
        ("count", C.c_uint32),
    ]


ORACLE = C.CFUNCTYPE(C.c_int, C.c_void_p, C.POINTER(Points), C.c_int64, C.c_uint32, C.POINTER(C.c_double))


class Oracle(C.Structure):
    _fields_ = [("values", ORACLE), ("state", C.c_void_p)]


class Span(C.Structure):
    _fields_ = [("bytes", C.POINTER(C.c_uint8)), ("count", C.c_size_t)]

    def raw(self) -> bytes:
        return C.string_at(self.bytes, self.count) if self.count else b""


class Instruction(C.Structure):
    _fields_ = [
        ("kind", C.c_int),
        ("round", C.c_int64),
        ("exchange", C.c_int64),
        ("counted", C.c_int64),
        ("update_count", C.c_uint32),
        ("updates", Span),
        ("steps", C.c_int64),
        ("numbers", Span),
        ("state", Span),
        ("values", Span),
    ]


class Update(C.Structure):
    _fields_ = [
        ("kind", C.c_int),
        ("round", C.c_int64),
        ("values", Span),
        ("group_count", C.c_uint32),
        ("groups", Span),
    ]


class Reply(C.Structure):
    _fields_ = [
        ("round", C.c_int64),
        ("exchange", C.c_int64),
        ("digest", C.c_uint8 * 8),
        ("values", Span),
        ("loss", Span),
        ("queries", C.c_int64),
    ]


ENTROPY = C.CFUNCTYPE(C.c_int, C.c_void_p, C.POINTER(C.c_uint8), C.c_size_t)


class Plan(C.Structure):
    _fields_ = [
        ("stream", C.c_int),
        ("rule", C.c_int),
        ("difference", C.c_int),
        ("local_steps", C.c_uint32),
        ("most_directions", C.c_uint32),
        ("most_terms", C.c_uint32),
        ("radius", C.c_double),
        ("beta", C.c_double),
        ("clip", C.c_double),
    ]


class Group(C.Structure):
    _fields_ = [("asked", C.c_int64), ("scalars", C.POINTER(C.c_float)), ("count", C.c_uint32)]


class Layer(C.Structure):
    _fields_ = [("kind", C.c_int), ("outputs", C.c_uint32), ("kernel", C.c_uint32), ("padding", C.c_uint32)]


class Network(C.Structure):
    _fields_ = [
        ("channels", C.c_uint32),
        ("height", C.c_uint32),
        ("width", C.c_uint32),
        ("layers", C.POINTER(Layer)),
        ("layer_count", C.c_uint32),
        ("rows_at_once", C.c_uint32),
    ]


class Batch(C.Structure):
    _fields_ = [("inputs", C.c_void_p), ("labels", C.c_void_p), ("places", C.c_void_p), ("rows", C.c_uint32)]
