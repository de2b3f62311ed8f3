"""The core in C (clients/core) as `fedzero_client._core`, by cffi, for the limited interface of CPython: one wheel for
all versions from 3.11 on. In a source distribution the core is in the folder `core`."""

from __future__ import annotations

import os
from pathlib import Path

import cffi

HERE = Path(__file__).resolve().parent
CORE = next(path for path in (HERE / "core", HERE.parent / "core") if (path / "src").is_dir())
DECLARATIONS = """
typedef enum { FZ_OK, FZ_ARGUMENT, FZ_MEMORY, FZ_NUMBER, FZ_MESSAGE, FZ_ENTROPY, FZ_ORACLE } fz_status;
typedef enum { FZ_RADEMACHER = 2, FZ_RANK_ONE = 4 } fz_stream;
typedef enum { FZ_SGD, FZ_MOMENTUM } fz_rule;
typedef enum { FZ_LINEAR, FZ_CONV, FZ_RELU, FZ_POOL } fz_kind;
typedef struct { const char *name; const uint32_t *shape; uint32_t axes; float *values; float *momentum; } fz_tensor;
typedef struct { uint64_t key; float coefficient; } fz_term;
typedef struct { const fz_term *terms; uint32_t count; float rate, beta, rest; } fz_step;
typedef struct {
    const fz_tensor *tensors; uint32_t tensor_count; fz_stream stream; const fz_term *terms; uint32_t count;
} fz_points;
typedef struct { fz_kind kind; uint32_t outputs; uint32_t kernel, padding; } fz_layer;
typedef struct {
    uint32_t channels, height, width; const fz_layer *layers; uint32_t layer_count; uint32_t rows_at_once;
} fz_network;
typedef struct { const float *inputs; const uint8_t *labels; const uint32_t *places; uint32_t rows; } fz_batch;
fz_status fz_advance(const fz_tensor *, uint32_t, fz_stream, fz_rule, const fz_step *, uint32_t);
void fz_view(const fz_tensor *, uint32_t, fz_stream, fz_term, float *);
void fz_row_signs(uint64_t, uint32_t, uint32_t, float *);
void fz_column_signs(uint64_t, uint32_t, uint32_t, float *);
uint64_t fz_checksum(const float *, uint32_t);
uint32_t fz_sample(uint64_t, uint32_t, uint32_t, uint32_t *);
size_t fz_network_size(const fz_network *, const fz_tensor *, uint32_t, fz_stream, uint32_t);
fz_status fz_network_values(const fz_network *, const fz_batch *, const fz_points *, void *, size_t, double *);
"""
FLAGS = [] if os.name == "nt" else ["-O3", "-ffp-contract=off"]
"""No fused operation anywhere: a momentum step would have other bits (clients/core/README.md)."""


def relative(path: Path) -> str:
    return os.path.relpath(path, HERE)


ffi = cffi.FFI()
ffi.cdef(DECLARATIONS)
ffi.set_source(
    "fedzero_client._core",
    '#include "fedzero_core.h"',
    sources=[relative(path) for path in sorted((CORE / "src").glob("*.c"))],
    include_dirs=[relative(CORE / "include"), relative(CORE / "src")],
    extra_compile_args=FLAGS,
    py_limited_api=True,
)
