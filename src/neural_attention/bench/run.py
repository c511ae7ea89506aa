"""A benchmark from beginning to end: its file is written after every round."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ..machine import describe_machine
from ..tasks.json_files import write_json
from .cases import BASELINE, CASES, Shape
from .measure import Conditions, Stopped, measure_group
from .peak import multiply_add_peak
from .presets import Group
from .probe import HOW

FORMAT = 1
MODES = ("forward", "training")


def run_benchmark(
    name: str,
    groups: list[Group],
    conditions: Conditions,
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure groups one after the other; go on where an interrupted run of the same stopped.

    Args:
        name: of the file, without ``.json``.
        groups: what to measure.
        conditions: of the measurement.
        folder: where the file lies. One with other content, or a finished one, is kept under
            another name.
        say: told what goes on.

    Returns:
        The content of the file.
    """
    torch.set_num_threads(conditions.threads)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    wanted = [
        {"shape": group.shape.as_json(), "cases": group.cases, "methods": group.methods}
        for group in groups
    ]
    machine = describe_machine()
    content = json.dumps([FORMAT, wanted, asdict(conditions), machine], sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()
    result = _unfinished(path, key, say)
    if result is None:
        result = {
            "format": FORMAT,
            "key": key,
            "name": name,
            "started": _now(),
            "finished": None,
            "conditions": asdict(conditions),
            "environment": _variables(),
            "machine": machine,
            "memory": HOW,
            "multiply_add_peak": None,
            "groups": [],
        }
    done = result["groups"]
    stopped = Stopped()
    for number, group in enumerate(groups):
        if number < len(done):
            _remember(done[number], stopped)
            continue
        # The best of several moments, since others may use the machine in some.
        peak = multiply_add_peak(conditions.device)
        result["multiply_add_peak"] = max(
            peak, result["multiply_add_peak"] or peak, key=lambda each: each["per_second"]
        )
        say(f"{group.shape.label} ({number + 1} of {len(groups)})")

        def save(entries: list[dict[str, Any]], group: Group = group) -> None:
            partial = {"shape": group.shape.as_json(), "entries": entries}
            write_json(path, _with_medians({**result, "groups": [*done, partial], "partial": True}))

        entries = measure_group(group, conditions, stopped, say, save)
        done.append({"shape": group.shape.as_json(), "entries": entries})
        write_json(path, _with_medians(result))
    result["finished"] = _now()
    write_json(path, _with_medians(result))
    return result


def read_result(path: Path) -> dict[str, Any]:
    """A benchmark's file.

    Raises:
        ValueError: there is none, or it is no benchmark's.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is not there: run the benchmark first.") from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not the result of a benchmark of this version.")
    return content


def _unfinished(path: Path, key: str, say: Callable[[str], None]) -> dict[str, Any] | None:
    """What an interrupted run of the same benchmark left; anything else is moved aside."""
    if not path.exists():
        return None
    try:
        result = read_result(path)
    except ValueError:
        result = {}
    if result.get("key") == key and result["finished"] is None:
        if result.pop("partial", False):  # its last group is measured anew, as a whole
            result["groups"].pop()
        say(f"{path}: going on behind {len(result['groups'])} finished groups")
        return result
    stamp = str(result.get("started", "unreadable")).replace(":", "")
    aside = path.with_name(f"{path.stem}-{stamp}.json")
    os.replace(path, aside)
    say(f"{path} held another result, now in {aside.name}")
    return None


def _remember(group: dict[str, Any], stopped: Stopped) -> None:
    shape = Shape(**group["shape"])
    for entry in group["entries"]:
        for mode in MODES:
            if reason := entry.get(mode, {}).get("skipped"):
                reason = reason.rpartition(": ")[2] if reason.startswith("stopped at") else reason
                stopped.add(entry["case"], entry["method"], mode, shape, reason)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _variables() -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", *PEER_LIMITS, "NEURAL_ATTENTION_ISA")
    return {name: os.environ[name] for name in names if name in os.environ}


PEER_LIMITS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
"""What keeps torch and its libraries to AVX2."""


def _with_medians(result: dict[str, Any]) -> dict[str, Any]:
    """Add to each time its median, its ratio to the baseline and its share of the peak."""
    peak = result["multiply_add_peak"]["per_second"]
    for group in result["groups"]:
        shape = Shape(**group["shape"])
        measured = [
            (entry, mode, entry[mode])
            for entry in group["entries"]
            for mode in MODES
            if entry.get(mode, {}).get("seconds")
        ]
        for _, _, times in measured:
            times["median_s"] = median(times["seconds"])
        baselines = {
            mode: times["median_s"]
            for entry, mode, times in measured
            if (entry["case"], entry["method"]) == BASELINE
        }
        for entry, mode, times in measured:
            counted = CASES[entry["case"]].operations(shape.head_dim, backward=mode == "training")
            times["share_of_peak"] = counted * shape.pairs / times["median_s"] / peak
            if mode in baselines:
                times["ratio"] = times["median_s"] / baselines[mode]
    return result
