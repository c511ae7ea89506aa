"""A comparison, from the data to the summary."""

from __future__ import annotations

import errno
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neural_attention.compare.arms import LARGEST_SIZE, Arm, check_arms, parse_arm
from neural_attention.compare.comparison import Comparison, ignore, spec_of
from neural_attention.compare.devices import resolve_device
from neural_attention.compare.execution import Execution
from neural_attention.compare.locking import Locked, locked
from neural_attention.compare.places import prepare_folder, saying_what_to_move_away
from neural_attention.compare.presets import choose_preset
from neural_attention.compare.processes import InThisProcess, JobFailed, Workers
from neural_attention.compare.progress import Progress
from neural_attention.tasks.registry import load_task
from neural_attention.tasks.task import Preset, Task
from neural_attention.tasks.wording import legible


def compare(
    task: str,
    arms: Sequence[str] | None = None,
    *,
    preset: str = "quick",
    out: str | Path = "comparison",
    seeds: int | None = None,
    learning_rates: Sequence[float] | None = None,
    device: str = "auto",
    control: bool = False,
    steps: int | None = None,
    accumulation: int | None = None,
    bf16: bool | None = None,
    patience: int | None = None,
    execution: Execution | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train models that differ in attention only, and say what came of it.

    Every arm gets the same data in the same order, the same initial values wherever it can, and
    the same sweep of learning rates at one seed; the best is chosen on the validation part and run
    with the other seeds; the test part is read once, at the end. Each run has a process of its own
    and leaves checkpoints: called again with the same arguments, finished runs are read and an
    interrupted one goes on where it stopped.

    Call it under ``if __name__ == "__main__":`` in a script, as all that starts processes.

    Args:
        task: a name of :data:`neural_attention.tasks.registry.TASKS`, such as ``"lm"``.
        arms: names of :func:`neural_attention.compare.parse_arm`; None for the task's defaults.
        preset: a name of the task's presets: ``"smoke"``, ``"quick"``, ``"laptop"`` or ``"paper"``.
        out: folder of results: ``result.json``, ``curves.png`` and a folder for each run.
        seeds: number of seeds at the chosen learning rate; None for the preset's.
        learning_rates: the sweep; None for the preset's.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or ``"mps"``.
        control: add a dot product with wider feed-forward layers, as many parameters as the
            largest arm.
        steps: training steps of a run; None for the preset's.
        accumulation: parts into which a step's examples are cut; None for the preset's.
        bf16: train in bfloat16 by autocast; scores are taken in float32.
        patience: stop a run after so many points of its curve without a better one, and keep its
            best weights.
        execution: runs at once, processes a run, and where curves are written meanwhile; None for
            one run after the other, with TensorBoard's files where that is installed.
        progress: what is told meanwhile, and to whom.
        options: the task's own, such as ``data``; see ``neural-attention compare TASK --help``.

    Returns:
        The content of ``result.json``.

    Raises:
        ValueError: an argument that does not fit; the message says which.
        FileNotFoundError, ConnectionError: the data cannot be had.
        OSError: ``out`` cannot be written, another comparison is writing to it, or a process that
            tries the arms dies.
        ImportError: a package is missing.
    """
    work = load_task(task)
    chosen = choose_preset(
        work,
        preset,
        options,
        steps=steps,
        seeds=seeds,
        learning_rates=learning_rates,
        accumulation=accumulation,
        bf16=bf16,
        patience=patience,
    )
    parsed = [parse_arm(name) for name in (work.default_arms(chosen) if arms is None else arms)]
    check_arms(parsed)
    progress = progress if progress is not None else Progress()
    execution = execution if execution is not None else Execution()
    workers = Workers(resolve_device(device))
    execution.check(chosen, workers.device)
    root = prepare_folder(out)
    try:
        with saying_what_to_move_away(root), locked(root / "lock", wait_s=0):
            _check_places(root)
            workers.start_server()
            source, notes = read_data(work, chosen, progress)
            fitting, more = fit_arms(work, parsed, chosen, workers, control=control)
            return Comparison(
                task=work,
                preset=chosen,
                arms=fitting,
                data=prepare_data(work, source, chosen, root, progress),
                device=workers.device,
                root=root,
                execution=execution,
                preset_name=preset,
                command=_command(work, preset, fitting, chosen, device, execution, options),
                workers=workers,
                progress=progress,
                notes=notes + more,
            ).carry_out()
    except Locked:
        raise OSError(
            f"another comparison is writing to {root}: wait for it, or give another folder."
        ) from None


def _command(
    task: Task,
    preset: str,
    arms: list[Arm],
    chosen: Preset,
    device: str,
    execution: Execution,
    options: Mapping[str, Any],
) -> str:
    """The command that does a comparison again, for a shell: all that its numbers depend on."""
    words = ["neural-attention", "compare", task.name, "--preset", preset]
    words += ["--device", device] if device != "auto" else []
    words += ["--jobs", str(execution.jobs)] if execution.jobs > 1 else []
    if execution.processes > 1:
        words += ["--processes", str(execution.processes), "--sharding", execution.sharding]
    words += ["--arms", *(arm.name for arm in arms)]
    words += ["--learning-rates", *(str(rate) for rate in chosen.learning_rates)]
    words += ["--seeds", str(chosen.seeds), "--steps", str(chosen.steps)]
    if chosen.accumulation > 1:
        words += ["--accumulation", str(chosen.accumulation)]
    if chosen.patience is not None:
        words += ["--patience", str(chosen.patience)]
    words += ["--bf16"] if chosen.bf16 else []
    for name, value in options.items():
        if value is not None:
            words += ["--" + name.replace("_", "-"), str(value)]
    return shlex.join(legible(word) for word in words)


def read_data(task: Task, preset: Preset, progress: Progress) -> tuple[Any, list[str]]:
    """The data of a task, and what is to be minded in them, which is told."""
    source, notes = task.read(preset, progress.say)
    for note in notes:
        progress.say(f"warning: {note}")
    return source, notes


def prepare_data(
    task: Task, source: Any, preset: Preset, root: Path, progress: Progress
) -> dict[str, Any]:
    """Write what runs read, or find it, while no other process does; and describe it."""
    with locked(root / "data.lock", wait_s=math.inf):
        data = task.prepare(source, preset, root / "data", progress.say)
    progress.say(task.describe(data))
    return data


def _check_places(root: Path) -> None:
    """Better now than after the training."""
    files, folders = ("result.json", "curves.png", "report.html"), ("data", "runs", "report")
    places = dict.fromkeys(files, "file") | dict.fromkeys(folders, "folder")
    for name, kind in places.items():
        path = root / name
        if path.exists() and path.is_dir() != (kind == "folder"):
            raise OSError(errno.EEXIST, f"a {kind} is needed there", str(path))


def fit_arms(
    task: Task, arms: list[Arm], preset: Preset, workers: Workers | InThisProcess, *, control: bool
) -> tuple[list[Arm], list[str]]:
    """The arms, after trying that each can be built, with the control; and what to mind in them."""
    # Parameters are compared with one another, so any vocabulary will do before there is one.
    specs = [spec_of(task, arm, preset, None, workers.device, {}) for arm in arms]
    try:
        found = workers.run(
            "count", {"specs": [asdict(spec) for spec in specs], "control": control}, ignore
        )
    except JobFailed as failure:
        raise ChildProcessError(f"the arms cannot be built: {failure.why}") from failure
    notes = list(found["notes"])
    if not control:
        return arms, notes
    width = found["control_feed_forward"]
    if width > LARGEST_SIZE:
        return arms, [*notes, f"no control was added: its feed-forward width would be {width:,}."]
    wider = parse_arm(f"dot+feed_forward={width}")
    if width > specs[0].sizes["intermediate_size"] and wider.name not in {arm.name for arm in arms}:
        return [*arms, wider], notes
    return arms, [
        *notes,
        "no control was added: no arm has more parameters than the dot product.",
    ]
