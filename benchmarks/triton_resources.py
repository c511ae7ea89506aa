"""What the Triton kernels take of a GPU: registers, spills and shared memory, found without one.

    python benchmarks/triton_resources.py                    # every case for every architecture
    python benchmarks/triton_resources.py --architectures sm_90 --cases "C = 8"

Compiles every row of the table of tiles for each architecture, with the assembler that Triton
brings (``ptxas -v``) and, for AMD, from the code object's own notes. Results go to
``triton_resources.json`` and ``.md``; those of other architectures and cases stay. Exits with 1
where a kernel spills more than the bound or does not fit into shared memory.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import neural_attention
from neural_attention import ops, validation
from neural_attention.backends.problem import DIFFERENTIABLE
from neural_attention.backends.triton import launch
from neural_attention.backends.triton.configuration import Tile

# Architecture: Triton's target, bytes of shared memory that one program may have.
ARCHITECTURES = {
    "sm_80": (GPUTarget("cuda", 80, 32), 163 * 1024),
    "sm_89": (GPUTarget("cuda", 89, 32), 99 * 1024),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 * 1024),
    "sm_100": (GPUTarget("cuda", 100, 32), 227 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
}
MULTIPROCESSORS = 132
# Bytes a thread may spill. What is spilled lies in the L1 cache.
SPILL_BOUND = 1024

# Name: dtype, C, width of a second hidden layer (0: none), head width, whether a dot product is
# added. Names that end in _OPTIONS add every mask, ALiBi, dropout and grouped heads. Each row of
# the table of tiles is compiled at its largest, and at what models use.
BF16, F32 = torch.bfloat16, torch.float32
_OPTIONS = "all options"
CASES: dict[str, tuple[torch.dtype, int, int, int, bool]] = {
    "bfloat16, C = 2, head 64": (BF16, 2, 0, 64, False),
    "bfloat16, C = 8, head 64": (BF16, 8, 0, 64, False),
    "bfloat16, C = 16, head 64": (BF16, 16, 0, 64, False),
    "bfloat16, C = 2 to 1, head 64": (BF16, 2, 1, 64, False),
    "bfloat16, C = 16 to 16, head 64": (BF16, 16, 16, 64, False),
    "bfloat16, dot product and C = 8, head 64": (BF16, 8, 0, 64, True),
    "bfloat16, C = 8, head 128": (BF16, 8, 0, 128, False),
    "bfloat16, dot product and C = 8, head 128": (BF16, 8, 0, 128, True),
    "bfloat16, C = 32, head 128": (BF16, 32, 0, 128, False),
    "bfloat16, dot product and C = 8, head 256": (BF16, 8, 0, 256, True),
    f"bfloat16, dot product and C = 2, head 64, {_OPTIONS}": (BF16, 2, 0, 64, True),
    f"bfloat16, C = 4 to 2, head 64, {_OPTIONS}": (BF16, 4, 2, 64, False),
    f"bfloat16, C = 32 to 16, head 64, {_OPTIONS}": (BF16, 32, 16, 64, False),
    "float32, C = 8, head 64": (F32, 8, 0, 64, False),
    "float32, dot product and C = 8, head 128": (F32, 8, 0, 128, True),
    "float32, dot product and C = 8, head 256": (F32, 8, 0, 256, True),
}


class Compiler:
    """Stands for a GPU of an architecture: what would be launched is compiled and examined."""

    def __init__(self, architecture: str) -> None:
        self.target, self.shared_limit = ARCHITECTURES[architecture]
        self.found: list[dict[str, Any]] = []

    def get_current_target(self) -> GPUTarget:
        """What Triton asks a GPU's driver, like the next two."""
        return self.target

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The default one."""
        return device

    def launch(
        self,
        kernel: Any,
        programs: int,
        tile: Tile,
        _: torch.Tensor,
        *arguments: Any,
        **constants: Any,
    ) -> None:
        """Compiles a kernel for these arguments and notes what it takes."""
        compiled = kernel.warmup(
            *arguments, **constants, num_warps=tile.warps, num_stages=tile.stages, grid=(programs,)
        )
        used = _amd(compiled) if "amdgcn" in compiled.asm else _nvidia(compiled)
        name = kernel.fn.__name__.removesuffix("_kernel")
        self.found.append({"kernel": name, "tile": list(tile)} | used)


def _nvidia(compiled: Any) -> dict[str, int]:
    target = re.search(r"\.target (sm_(\d+)\w*)", compiled.asm["ptx"])
    assert target
    tool = "ptxas-blackwell" if int(target[2]) >= 100 else "ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source:
        source.write(compiled.asm["ptx"])
        source.flush()
        command = [Path(nvidia.__path__[0]) / "bin" / tool, "-v", "--gpu-name", target[1]]
        run = subprocess.run(
            [*command, source.name, "-o", "/dev/null"], capture_output=True, text=True, check=True
        )
    registers = re.search(r"Used (\d+) registers", run.stderr)
    spilled = re.search(r"(\d+) bytes spill stores", run.stderr)
    assert registers
    assert spilled
    return {
        "registers": int(registers[1]),
        "spilled": int(spilled[1]),
        "shared": compiled.metadata.shared,
    }


def _amd(compiled: Any) -> dict[str, int]:
    notes = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count): +(\d+)", compiled.asm["amdgcn"]))
    return {
        "registers": int(notes["vgpr_count"]),
        "spilled": 4 * int(notes["vgpr_spill_count"]),
        "shared": compiled.metadata.shared,
    }


def examine(
    compiler: Compiler,
    dtype: torch.dtype,
    channels: int,
    second: int,
    width: int,
    dot: bool,
    all_options: bool,
) -> list[dict[str, Any]]:
    """All kernels of one case, causal, with slopes, for an architecture."""

    def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    batch, heads, keys = 1, 8, 4096
    key_heads = heads // 4 if all_options else heads
    slopes = meta(heads, channels) if channels else None
    hidden = (meta(heads, second, channels), meta(heads, second)) if second else (None, None)

    def problem(queries: int) -> Any:
        def rows(head_count: int, count: int, size: int) -> torch.Tensor:
            return meta(batch, head_count, count, size, dtype=dtype)

        products: tuple[Any, ...] = (None, None)
        if dot:
            products = (rows(heads, queries, width), rows(key_heads, keys, width))
        options: tuple[Any, ...] = (None,) * 6
        window, dropout = None, 0.0
        if all_options:
            integers = meta(batch, dtype=torch.int64)
            options = (
                meta(heads), meta(heads, 1, keys), integers, integers,
                meta(9, dtype=torch.int32) if queries == keys else None,
                meta(1, dtype=torch.int64),
            )  # fmt: skip
            window, dropout = 512, 0.1
        return ops._problem(
            rows(heads, queries, channels), rows(key_heads, keys, channels),
            rows(key_heads, keys, width), meta(heads, second or channels), *hidden, *products,
            slopes, *options, "relu", 0.125, True, keys - queries, window, None, dropout,
        )  # fmt: skip

    compiler.found = []
    launch.forward(problem(1))
    training = problem(keys)
    out, lse, rest = launch.forward(training)
    needs = {name: getattr(training, name) is not None for name in DIFFERENTIABLE}
    upstream = torch.empty_like(out), torch.empty_like(lse)
    launch.backward(training, out, lse, rest, *upstream, needs)
    return compiler.found


def measure(architecture: str, cases: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Case and what its kernels take."""
    compiler = Compiler(architecture)
    driver.set_active(compiler)
    launch._launch = compiler.launch
    launch._programs = lambda device: 2 * MULTIPROCESSORS
    launch.check = lambda problem: None  # refuses tensors without a GPU
    for name in ("query_offsets", "key_lengths", "cu_seqlens"):
        setattr(validation, f"check_{name}", lambda *_: None)  # and values
    for case in cases:
        yield case, examine(compiler, *CASES[case], case.endswith(_OPTIONS))


def faults(results: dict[str, Any]) -> Iterator[str]:
    """Kernels that spill too much or do not fit."""
    for architecture, cases in results["architectures"].items():
        limit = ARCHITECTURES[architecture][1]
        for case, kernels in cases.items():
            for found in kernels:
                where = f"{architecture}, {case}, {found['kernel']} {tuple(found['tile'])}"
                if found["spilled"] > SPILL_BOUND:
                    yield f"{where} spills {found['spilled']} bytes a thread"
                if found["shared"] > limit:
                    yield f"{where} wants {found['shared']} bytes of shared memory of {limit}"


def as_markdown(results: dict[str, Any]) -> str:
    """The results as one table for each architecture."""
    lines = [
        "# What the Triton kernels take of a GPU",
        "",
        f"Compiled without a GPU by `benchmarks/triton_resources.py`, Triton {results['triton']}. "
        "Causal, with slopes; 4,096 keys; `split` and `merge` decode one query. Tiles are rows × "
        "columns, warps, stages. Registers and bytes spilled are for each thread, shared memory "
        f"for each program. Bound on spills: {SPILL_BOUND} bytes.",
    ]
    for architecture, cases in results["architectures"].items():
        limit = ARCHITECTURES[architecture][1]
        lines += ["", f"## {architecture}: {limit:,} bytes of shared memory", ""]
        lines += [
            "| case | kernel | tile | registers | spilled | shared |",
            "|---|---|---|---|---|---|",
        ]
        for case, kernels in cases.items():
            for found in kernels:
                rows, columns, warps, stages = found["tile"]
                lines.append(
                    f"| {case} | {found['kernel']} | {rows} × {columns}, {warps}, {stages} | "
                    f"{found['registers']} | {found['spilled']:,} | {found['shared']:,} |"
                )
    return "\n".join(lines) + "\n"


def save(results: dict[str, Any], folder: Path) -> None:
    """Writes both files whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"json": json.dumps(results, indent=1) + "\n", "md": as_markdown(results)}
    for suffix, text in texts.items():
        path = folder / f"triton_resources.{suffix}"
        temporary = path.with_suffix(f".{suffix}.new")
        temporary.write_text(text)
        temporary.replace(path)


def main() -> int:
    """Compile, print, save, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--architectures", nargs="+", choices=ARCHITECTURES, default=[*ARCHITECTURES]
    )
    parser.add_argument("--cases", nargs="+", default=[""], help="parts of the cases' names")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    cases = [case for case in CASES if any(part in case for part in arguments.cases)]
    if not cases:
        parser.error(f"no case has {arguments.cases} in its name: {', '.join(CASES)}.")
    path = arguments.out / "triton_resources.json"
    results = json.loads(path.read_text()) if path.exists() else {"architectures": {}}
    results |= {"triton": triton.__version__, "neural_attention": neural_attention.__version__}
    for architecture in arguments.architectures:
        for case, kernels in measure(architecture, cases):
            print(architecture, case, flush=True)
            for found in kernels:
                print("   ", found, flush=True)
            results["architectures"].setdefault(architecture, {})[case] = kernels
            save(results, arguments.out)
    found = list(faults(results))
    print("\n".join(found) or "No kernel spills or takes too much.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
