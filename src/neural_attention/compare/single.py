"""One run of a comparison, alone or in the processes that torchrun starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from neural_attention.compare.arms import parse_arm
from neural_attention.compare.comparing import fit_arms, prepare_data, read_data
from neural_attention.compare.comparison import Comparison, ignore
from neural_attention.compare.devices import resolve_device
from neural_attention.compare.execution import Execution, launched
from neural_attention.compare.places import prepare_folder, saying_what_to_move_away
from neural_attention.compare.presets import choose_preset
from neural_attention.compare.processes import InThisProcess, Workers
from neural_attention.compare.progress import Progress
from neural_attention.compare.store import result_form
from neural_attention.tasks.json_files import read_json
from neural_attention.tasks.registry import load_task


def train(
    task: str,
    arm: str,
    *,
    preset: str = "quick",
    out: str | Path = "comparison",
    learning_rate: float | None = None,
    seed: int = 0,
    device: str = "auto",
    steps: int | None = None,
    accumulation: int | None = None,
    bf16: bool | None = None,
    patience: int | None = None,
    execution: Execution | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train one arm at one learning rate and seed.

    Its files lie where a comparison looks for them: called later with the same options,
    :func:`neural_attention.compare.compare` reads the finished run. The test part is not read.

    Under torchrun, or anything that sets ``RANK`` and ``WORLD_SIZE``, each process calls this and
    works at the same run; the folder must be one that all of them see.

    Args:
        task: a name of :data:`neural_attention.tasks.registry.TASKS`.
        arm: a name of :func:`neural_attention.compare.parse_arm`.
        preset: a name of the task's presets.
        out: folder of results.
        learning_rate: None for the middle one of the preset's sweep.
        seed: of initial values, data order and dropout.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or ``"mps"``.
        steps: training steps; None for the preset's.
        accumulation: parts into which a step's examples are cut; None for the preset's.
        bf16: train in bfloat16 by autocast.
        patience: stop after so many points of the curve without a better one.
        execution: processes, and where the curve is written meanwhile. Its ``processes`` are those
            of torchrun where there are any.
        progress: what is told meanwhile, and to whom.
        options: the task's own.

    Returns:
        The content of the run's ``result.json``, and ``folder``; in all processes but the first,
        nothing.

    Raises:
        ValueError, FileNotFoundError, ConnectionError: as :func:`neural_attention.compare.compare`.
        OSError: ``out`` cannot be written.
        ChildProcessError: the run failed; the message says why, and where to read more.
    """
    rank, world = launched()
    execution = execution if execution is not None else Execution()
    if world > 1:
        execution = replace(execution, processes=world)
    progress = progress if progress is not None and rank == 0 else Progress()
    work, one = load_task(task), parse_arm(arm)
    chosen = choose_preset(
        work,
        preset,
        options,
        steps=steps,
        learning_rates=None if learning_rate is None else [learning_rate],
        accumulation=accumulation,
        bf16=bf16,
        patience=patience,
    )
    device = resolve_device(device)
    execution.check(chosen, device)
    if seed < 0:
        raise ValueError(f"seed is {seed}: a number from 0 is needed.")
    workers = InThisProcess(device) if world > 1 else Workers(device)
    root = prepare_folder(out)
    with saying_what_to_move_away(root):
        source, notes = read_data(work, chosen, progress)
        fitting, more = fit_arms(work, [one], chosen, workers, control=False)
        for note in more:
            progress.say(f"note: {note}")
        comparison = Comparison(
            task=work,
            preset=chosen,
            arms=fitting,
            data=prepare_data(work, source, chosen, root, progress),
            device=device,
            root=root,
            execution=execution,
            preset_name=preset,
            command="",
            workers=workers,
            progress=progress,
            notes=notes + more,
        )
        rates = chosen.learning_rates
        spec = comparison.specs()[arm].at(rates[len(rates) // 2], seed)
        folder = spec.folder(root / "runs")
        if rank > 0:
            if read_json(folder / "result.json", result_form(spec, work)) is None:
                workers.run("train", comparison.payload(spec, folder), ignore)
            return {}
        result = comparison.result(spec)
    if result is None:
        raise ChildProcessError(
            f"the run failed: {comparison.failures[-1]['why']} (see {folder / 'crash.txt'})"
        )
    return {**result, "folder": str(folder)}
