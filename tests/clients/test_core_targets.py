"""The conformance vectors: as derived, and on every target whose tools are here. Fused operations must fail."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from pathlib import Path

import make
import pytest

VECTORS = Path(make.__file__).parent
WASM = ("clang", "wasm-ld", "node")
ARM = ("arm-none-eabi-gcc", "qemu-system-arm")


def test_the_vectors_are_those_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert make.main(check=True) == 0, capsys.readouterr().out
    for line in (VECTORS / "golden.txt").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((VECTORS / name).read_bytes()).hexdigest() == digest


def holds(said: str, skipped: int = 0) -> bool:
    return "failed 0\n" in said and f"skipped {skipped}\n" in said


def test_natively(made: Callable[..., str]) -> None:
    assert holds(made("check-native", "cc", "OPTIMISE=-O1"))


@pytest.mark.slow
def test_in_webassembly_with_simd_and_without(made: Callable[..., str]) -> None:
    said = made("check-wasm", *WASM)
    assert said.count("failed 0\nskipped 0\n") == 2


@pytest.mark.slow
def test_modules_are_small(made: Callable[..., str]) -> None:
    sizes = [int(line.split()[0]) for line in made("sizes-wasm", *WASM).splitlines()]
    assert len(sizes) == 2 and max(sizes) <= 32 << 10


@pytest.mark.slow
def test_on_a_big_endian_machine(made: Callable[..., str]) -> None:
    assert holds(made("check-be", "mips-linux-gnu-gcc", "qemu-mips"))


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["m3", "m4", "m7"])
def test_on_a_cortex_m(made: Callable[..., str], cpu: str) -> None:
    """64-32-10 learns within 64 KB of RAM."""
    said = made(f"check-{cpu}", *ARM)
    assert holds(said) and "momentum: right" in said


@pytest.mark.slow
def test_on_a_cortex_m0_with_16_kb(made: Callable[..., str]) -> None:
    """Some programs are larger than its memory; 64-32-10 learns with plain steps."""
    said = made("check-m0", *ARM)
    assert "failed 0\n" in said and "plain: right -1" not in said


@pytest.mark.slow
def test_fused_operations_are_found(made: Callable[..., str]) -> None:
    """The control: momentum differs, folds and everything else agree."""
    said = made("check-m4-fused", *ARM)
    wrong = [line for line in said.splitlines() if line.startswith("does not hold")]
    assert wrong and all("programs" in line for line in wrong) and "status 2" in said


@pytest.mark.slow
def test_fused_operations_are_found_natively(made: Callable[..., str]) -> None:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("needs a processor with fused operations")
    said = made("check-fused", "cc")
    assert "status 2" in said or "skipped: no fused operations" in said


@pytest.mark.slow
def test_bytes_of_chance_under_sanitizers(made: Callable[..., str]) -> None:
    """Messages, sizes, settings; every message lies in memory of exactly its size."""
    said = made("fuzz", "cc", "CASES=100000")
    assert "cases 100000 read" in said and "networks 0" not in said


def test_memory_and_globals(made: Callable[..., str]) -> None:
    """The library has no variables, and calls nothing but memcpy and memset."""
    listed = made("symbols", "cc", "nm", "OPTIMISE=-O1")
    names = [line.split()[-1] for line in listed.splitlines() if line]
    kinds = {line.split()[-2] for line in listed.splitlines() if line}
    called = {name for name in names if not name.startswith("fz_")}
    assert not kinds & set("BbDdCSs") and called <= {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
