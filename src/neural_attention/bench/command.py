"""``neural-attention bench``: its options, and what it does with them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .cases import CASES
from .methods import METHODS
from .presets import PRESETS, Group, check_device, groups_of

if TYPE_CHECKING:
    from .measure import Conditions


def add_bench(commands: Any) -> None:
    """Add the command to the command line."""
    bench = commands.add_parser(
        "bench",
        help="time and memory of the operator beside its peers",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure this library's backends beside their peers, in turns and in one run.\n"
        "Called again, it goes on where it was interrupted.\n\npresets:\n"
        + "\n".join(f"  {name:10}{preset.about}" for name, preset in PRESETS.items()),
    )
    bench.add_argument(
        "--preset", default="table", choices=list(PRESETS), help="(default: table)", metavar="NAME"
    )
    bench.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    bench.add_argument(
        "--cases", nargs="+", metavar="CASE", help=f"in place of the preset's: {', '.join(CASES)}"
    )
    bench.add_argument(
        "--methods", nargs="+", metavar="METHOD", help=f"likewise: {', '.join(METHODS)}"
    )
    bench.add_argument("--lengths", nargs="+", type=int, metavar="N", help="numbers of keys")
    bench.add_argument("--batch", nargs="+", type=int, metavar="B", help="batch sizes")
    bench.add_argument("--heads", type=int, metavar="H", help="number of heads")
    bench.add_argument("--head-dim", type=int, metavar="D", help="width of q, k and v")
    bench.add_argument("--dtype", nargs="+", metavar="DTYPE", help="float32, bfloat16, float16")
    bench.add_argument("--causal", action=argparse.BooleanOptionalAction, help="a causal mask")
    bench.add_argument("--threads", type=int, metavar="N", help="(default: torch's)")
    bench.add_argument("--repeats", type=int, metavar="N", help="samples of each time")
    bench.add_argument(
        "--budget", type=float, metavar="SECONDS", help="for one method's samples at one shape"
    )
    bench.add_argument(
        "--isa",
        choices=["avx2"],
        help="limit the kernels, and torch and its libraries alike, to an instruction set",
    )
    bench.add_argument(
        "--out", default="runs/bench", metavar="FOLDER", help="(default: runs/bench)"
    )
    bench.add_argument(
        "--plot-only", action="store_true", help="print and draw what has been measured"
    )
    bench.add_argument("--quiet", action="store_true", help="no progress")
    bench.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    from .plot import draw_result
    from .report import print_result
    from .run import PEER_LIMITS, read_result, run_benchmark

    limits = PEER_LIMITS | {"NEURAL_ATTENTION_ISA": "avx2"} if options.isa else {}
    if any(os.environ.get(name) != value for name, value in limits.items()):
        # Torch reads these once, before this line: a process of its own reads them anew.
        command = [sys.executable, "-m", "neural_attention", *options.arguments]
        return subprocess.run(command, env=os.environ | limits, check=False).returncode

    parts = (options.preset, options.isa, options.device if options.device != "cpu" else None)
    name, folder = "-".join(part for part in parts if part), Path(options.out)
    if options.plot_only:
        result = read_result(folder / f"{name}.json")
    else:
        check_device(options.device)
        groups, conditions = chosen_groups(options), _conditions(options)
        result = run_benchmark(name, groups, conditions, folder, _say(options))
    print_result(result, sys.stdout, is_terminal=sys.stdout.isatty())
    files = [folder / f"{name}.json", *draw_result(result, folder)]
    print(f"\nFiles: {', '.join(map(str, files))}")
    return 0


def chosen_groups(options: argparse.Namespace) -> list[Group]:
    """What to measure: the preset with what the command changes in it.

    Raises:
        ValueError: a name or a size that cannot be.
    """
    chosen = {
        "cases": options.cases,
        "methods": options.methods,
        "lengths": options.lengths,
        "batches": options.batch,
        "dtypes": options.dtype,
        "heads": options.heads,
        "head_dim": options.head_dim,
        "causal": None if options.causal is None else [options.causal],
    }
    changes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in chosen.items()
        if value is not None
    }
    return groups_of(PRESETS[options.preset], changes)


def _conditions(options: argparse.Namespace) -> Conditions:
    from .measure import Conditions

    preset = PRESETS[options.preset]
    for name in ("threads", "repeats", "budget"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ValueError(f"--{name} is {value}: it must be more than 0.")
    return Conditions(
        device=options.device,
        threads=options.threads or torch.get_num_threads(),
        repeats=options.repeats or preset.repeats,
        budget_s=options.budget or preset.budget_s,
    )


def _say(options: argparse.Namespace) -> Any:
    def say(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr, flush=True)

    return say
