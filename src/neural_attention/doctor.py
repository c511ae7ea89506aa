"""What this installation can do on this machine, and what to install for what it cannot."""

from __future__ import annotations

import os
import platform
import re
import shutil
import textwrap
import warnings
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import IO, Any

import torch

from . import backends
from .backends import native

WIDTH = 80
_NAME = "neural-attention"
_VERSIONS = ("torch", "triton", "numpy", "transformers")
_OPENMP = re.compile(r"lib(?:gomp|iomp5|omp)\b[^/]*$")
_NO_BREAK = "\N{NO-BREAK SPACE}"
_REINSTALL = "pip install --force-reinstall --no-deps --verbose ."


def diagnose() -> dict[str, Any]:
    """Everything that ``neural-attention doctor`` tells, ready for JSON.

    Returns:
        ``versions``, ``machine``, ``backends`` (for each, None or why it cannot run),
        ``auto_on_cpu``, ``kernels``, ``threads``, ``gpu``, ``extras`` (for each, what is missing
        and what installs it) and ``advice``, sentences on what should be mended.

    >>> diagnose()["backends"]["blocked"] is None
    True
    """
    found: dict[str, Any] = {
        "versions": {"python": platform.python_version(), _NAME: _version(_NAME)}
        | {name: _version(name) for name in _VERSIONS},
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "memory_gib": _memory_gib(),
        },
        "backends": {name: backends.unavailable_reason(name) for name in backends.NAMES},
        "auto_on_cpu": backends.load("auto", torch.empty(0), None).__name__.rpartition(".")[2],
        "kernels": _kernels(),
        "threads": _threads(),
        "gpu": _gpu(),
        "extras": _extras(),
    }
    # Last, when everything that brings a runtime of its own has been loaded.
    found["threads"]["openmp_runtimes"] = _openmp_runtimes()
    return found | {"advice": _advice(found)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    return round(total / 2**30, 1)


def _kernels() -> dict[str, Any]:
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    return {
        "instruction_set": None if native.unavailable_reason() else native.instruction_set(),
        "instruction_sets": native.instruction_sets(),
        "forced": os.environ.get("NEURAL_ATTENTION_ISA") or None,
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
        "compiler": next(
            (path for name in compilers if name and (path := shutil.which(name))), None
        ),
    }


def _threads() -> dict[str, Any]:
    return {
        "torch": torch.get_num_threads(),
        "usable_cores": _usable_cores(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


def _usable_cores() -> float:
    """Cores that this process may use: its affinity, and its control group's share of time."""
    if hasattr(os, "sched_getaffinity"):
        cores = float(len(os.sched_getaffinity(0)))
    else:
        cores = float(os.cpu_count() or 1)
    for quota in _cpu_quotas():
        cores = min(cores, quota)
    return cores


def _cpu_quotas() -> list[float]:
    """Limits in cores, of the process's control group (version 2) and of those around it."""
    root = Path("/sys/fs/cgroup")
    quotas = []
    try:
        inside = Path("/proc/self/cgroup").read_text().partition("0::/")[2].split("\n")[0]
        group = root / inside
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            if (limit := folder / "cpu.max").is_file():
                quota, period = limit.read_text().split()
                if quota != "max":
                    quotas.append(int(quota) / int(period))
    except (OSError, ValueError):
        return []
    return quotas


def _openmp_runtimes() -> list[str] | None:
    """Files of the OpenMP runtimes in this process; None where the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if _OPENMP.search(path))


def _gpu() -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:  # a driver that is too old warns
        warnings.simplefilter("always")
        has_cuda = torch.cuda.is_available()
        devices = [
            {
                "name": torch.cuda.get_device_name(index),
                "memory_gib": round(
                    torch.cuda.get_device_properties(index).total_memory / 2**30, 1
                ),
                "capability": ".".join(map(str, torch.cuda.get_device_capability(index))),
            }
            for index in range(torch.cuda.device_count() if has_cuda else 0)
        ]
    return {
        "devices": devices,
        "mps": torch.backends.mps.is_available(),
        "torch_built_for": torch.version.cuda or torch.version.hip or None,
        "warnings": [str(warning.message) for warning in caught],
    }


def _extras() -> dict[str, Any]:
    """For each extra of this package: what is missing of it, and the command that brings it."""
    try:
        requirements = requires(_NAME) or []
    except PackageNotFoundError:  # imported from a folder, without an installation
        return {}
    found: dict[str, Any] = {}
    for requirement in requirements:
        matched = re.fullmatch(
            r"([\w.-]+)(?:\[[^]]*])?([^;]*?);\s*extra == ['\"]([\w-]+)['\"]", requirement
        )
        if matched is None:
            continue
        package, wanted, extra = matched.groups()
        entry = found.setdefault(
            extra, {"missing": [], "install": f'pip install "{_NAME}[{extra}]"'}
        )
        if package != _NAME and not _satisfies(_version(package), wanted):
            entry["missing"].append(package + wanted.strip())
    return found


def _satisfies(installed: str | None, wanted: str) -> bool:
    """Whether a version lies within bounds such as ``>=5.0,<6``."""
    if installed is None:
        return False

    def release(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)][:3]

    return all(
        (release(installed) >= release(bound)) == (sign == ">=")
        for sign, bound in re.findall(r"(>=|<)\s*([\d.]+)", wanted)
    )


def _advice(found: dict[str, Any]) -> list[str]:
    advice = []
    kernels, threads = found["kernels"], found["threads"]
    if not kernels["instruction_sets"]:
        compiler = kernels["compiler"]
        have = (
            f"The compiler {compiler} is there"
            if compiler
            else "No C++ compiler was found: install one first (Debian and Ubuntu: apt-get install "
            "g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install)"
        )
        advice.append(
            f"The CPU kernels cannot run, so attention on the CPU is slower. {have}; then, in the "
            f"clone: {_REINSTALL}"
        )
    elif kernels["instruction_set"] is None:
        known = ", ".join(name for name, why in kernels["instruction_sets"].items() if why is None)
        advice.append(f"Unset NEURAL_ATTENTION_ISA, or set it to what runs here: {known}.")
    if len(threads["openmp_runtimes"] or []) > 1:
        advice.append(
            "More than one OpenMP runtime is loaded; their threads compete for the same cores. "
            "Import torch first, and look for another package that brings its own (the files "
            "stand above)."
        )
    if threads["torch"] > threads["usable_cores"]:
        cores = max(1, int(threads["usable_cores"]))
        advice.append(
            f"torch uses {threads['torch']} threads on {threads['usable_cores']:g} usable cores, "
            f"and they wait for each other: set OMP_NUM_THREADS={cores}."
        )
    advice += [f"torch says of the GPU: {message}" for message in found["gpu"]["warnings"]]
    return advice


def print_report(found: dict[str, Any], file: IO[str]) -> None:
    """Print what :func:`diagnose` found, at most 80 columns wide where words allow it."""

    def section(title: str, rows: dict[str, str]) -> None:
        print(title, file=file)
        margin = max(map(len, rows)) + 4
        for name, text in rows.items():
            print(_filled(text, f"  {name}".ljust(margin), " " * margin), file=file)
        print(file=file)

    machine, kernels, threads, gpu = (
        found[name] for name in ("machine", "kernels", "threads", "gpu")
    )
    versions = {name: text or "not installed" for name, text in found["versions"].items()}
    section("Versions", versions | {"installed in": str(Path(__file__).parent)})
    memory = machine["memory_gib"]
    section(
        "Machine",
        {
            "system": machine["system"],
            "processor": machine["processor"],
            "memory": "not known" if memory is None else f"{memory} GiB",
        },
    )
    section(
        "Backends",
        {name: why or "runs here" for name, why in found["backends"].items()}
        | {"auto": f"{found['auto_on_cpu']} on the CPU"},
    )
    section(
        "CPU kernels",
        {
            "in use": (kernels["instruction_set"] or "none")
            + (f" (NEURAL_ATTENTION_ISA={kernels['forced']})" if kernels["forced"] else ""),
            **{name: why or "runs here" for name, why in kernels["instruction_sets"].items()},
            "torch's own": kernels["torch_capability"],
            "compiler": kernels["compiler"] or "none found",
        },
    )
    runtimes = threads["openmp_runtimes"]
    section(
        "Threads",
        {
            "torch": str(threads["torch"]),
            "usable cores": f"{threads['usable_cores']:g}",
            "OMP_NUM_THREADS": threads["OMP_NUM_THREADS"] or "not set",
            "OpenMP": "not known on this system"
            if runtimes is None
            else " ".join(runtimes) or "none loaded",
        },
    )
    built_for = gpu["torch_built_for"] or "the CPU alone"
    devices = {
        f"cuda:{index}": f"{gpu['name']}, {gpu['memory_gib']} GiB, {gpu['capability']}"
        for index, gpu in enumerate(gpu["devices"])
    } or {"none": f"torch finds no CUDA GPU here; it is built for {built_for}"}
    section("GPU", devices | ({"mps": "Apple's GPU"} if gpu["mps"] else {}))
    section(
        "Extras",
        {
            name: f"lacks {', '.join(extra['missing'])}: {_whole(extra['install'])}"
            if extra["missing"]
            else "complete"
            for name, extra in found["extras"].items()
        }
        or {"not known": f"the package is not installed, only imported: pip install {_NAME}"},
    )
    for sentence in found["advice"] or ["Nothing needs mending."]:
        print(_filled(sentence), file=file)


def _whole(command: str) -> str:
    """A command that no line break may cut, so that it can be copied."""
    return command.replace(" ", _NO_BREAK)


def _filled(text: str, first: str = "", others: str = "") -> str:
    filled = textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(_NO_BREAK, " ")
