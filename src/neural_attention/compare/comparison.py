"""A comparison at work: its runs, what they gave, and what failed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from neural_attention.compare.arms import Arm
from neural_attention.compare.checkpoints import is_complete
from neural_attention.compare.curves import draw_curves
from neural_attention.compare.execution import Execution
from neural_attention.compare.processes import InThisProcess, JobFailed, JobMistake, Workers
from neural_attention.compare.progress import Progress
from neural_attention.compare.store import (
    changed_since,
    form_of_test,
    read_or_set_aside,
    result_form,
    timing_form,
    write_spec,
    write_summary,
)
from neural_attention.compare.summary import Found, better_first, summarise
from neural_attention.tasks.json_files import write_json
from neural_attention.tasks.task import Preset, RunSpec, Task
from neural_attention.tasks.wording import legible, magnitude

_T = TypeVar("_T")


def spec_of(
    task: Task,
    arm: Arm,
    preset: Preset,
    data: dict[str, Any] | None,
    device: str,
    environment: dict[str, Any],
) -> RunSpec:
    """The run of an arm at the first learning rate and seed 0; before there are data, a trial.

    Raises:
        ValueError: the arm has options that are for converted models, and the task has none.
    """
    overrides: dict[str, Any] = {"feed_forward": arm.feed_forward, "kv_heads": arm.kv_heads}
    conversion = {"roles": None if arm.roles is None else list(arm.roles), "start": arm.start}
    if not task.converts and any(conversion.values()):
        raise ValueError(
            f"arm {arm.name!r}: roles and start are for tasks that convert models of transformers, "
            f"and {task.name} builds its own."
        )
    overrides |= conversion
    sizes = task.sizes(preset, data)
    schedule = ("batch_size", "steps", "warmup_steps", "weight_decay", "betas", "max_grad_norm",
                "evaluations", "accumulation", "bf16", "patience")  # fmt: skip
    return RunSpec(
        task=task.name,
        arm=arm.name,
        attention=arm.attention(task.head_dim(preset)),
        layers=arm.layers_of(sizes["num_hidden_layers"]),
        overrides={name: value for name, value in overrides.items() if value is not None},
        sizes=sizes,
        training={name: getattr(preset, name) for name in schedule} | task.training(preset),
        learning_rate=preset.learning_rates[0],
        seed=0,
        data=data or {},
        device=device,
        environment=environment,
    )


@dataclass
class Comparison:
    """One comparison.

    Attributes:
        task: what is learned.
        preset: sizes and schedule.
        arms: what to compare; each can be built.
        data: the description of the prepared data.
        device: where the runs work.
        root: folder of results, whose lock the caller holds.
        execution: how runs are carried out.
        preset_name: the preset's.
        command: what does it again, for a shell.
        workers: what starts the jobs.
        progress: what is told meanwhile.
        notes: what was noticed so far.
        failures: runs that gave no result.
        started: when the command began, which says of two speeds whether they were measured in one
            go.
    """

    task: Task
    preset: Preset
    arms: list[Arm]
    data: dict[str, Any]
    device: str
    root: Path
    execution: Execution
    preset_name: str
    command: str
    workers: Workers | InThisProcess
    progress: Progress
    notes: list[str]
    failures: list[dict[str, str]] = field(default_factory=list)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    _expected: set[Path] = field(default_factory=set)
    _changes_told: set[str] = field(default_factory=set)

    def carry_out(self) -> dict[str, Any]:
        """Do what is still to be done, and write ``result.json`` and ``curves.png``."""
        specs = self.specs()
        rates, seeds = self.preset.learning_rates, range(self.preset.seeds)
        self._expect([spec.at(rate, 0) for spec in specs.values() for rate in rates])
        self._expect([spec.at(rates[0], seed) for spec in specs.values() for seed in seeds[1:]])

        tried = self._each(
            self.result, [spec.at(rate, 0) for spec in specs.values() for rate in rates]
        )
        sweeps: dict[str, list[dict[str, Any]]] = {name: [] for name in specs}
        for result in tried:
            if result is not None:
                sweeps[result["arm"]].append(result)
        best = {name: self._best_rate(results) for name, results in sweeps.items()}
        self._drop_weights(specs, best)

        final: dict[str, list[dict[str, Any]]] = {name: [] for name in specs}
        chosen = [
            specs[name].at(rate, seed)
            for name, rate in best.items()
            if rate is not None
            for seed in seeds
        ]
        for spec, result in zip(chosen, self._each(self._chosen_result, chosen), strict=True):
            if result is not None and spec.seed == 0:
                # As it stands beside the other rates: it may have been trained again.
                sweep, rate = sweeps[spec.arm], spec.learning_rate
                sweeps[spec.arm] = [r if r["learning_rate"] != rate else result for r in sweep]
            if result is not None and not result["diverged"]:
                final[spec.arm].append(result)
        # One after the other: they are compared with one another.
        timings = {name: self._timing(spec) for name, spec in specs.items()}
        finished = [
            (specs[name].at(result["learning_rate"], result["seed"]), result)
            for name, results in final.items()
            for result in results
        ]
        scores = self._each(self._test, [spec for spec, _ in finished])
        for (_, result), score in zip(finished, scores, strict=True):
            result["test"] = score

        summary = summarise(
            Found(
                task=self.task,
                preset=self.preset,
                data=self.data,
                specs=specs,
                sweeps=sweeps,
                final=final,
                timings=timings,
                notes=self.notes,
                failures=self.failures,
                root=self.root,
                execution=self.execution,
                preset_name=self.preset_name,
                command=self.command,
            )
        )
        note = write_summary(self.root, summary)
        if note is not None:
            self.progress.say(note)
        self._draw(summary)
        return summary

    def _each(self, do: Callable[[RunSpec], _T], specs: list[RunSpec]) -> list[_T]:
        """What ``do`` gives for each run, several at once if asked for."""
        with ThreadPoolExecutor(self.execution.jobs) as pool:
            waiting = [pool.submit(do, spec) for spec in specs]
            try:
                return [one.result() for one in waiting]
            except BaseException:
                # Also Ctrl-C, which this thread gets: none goes on, and none begins.
                pool.shutdown(wait=False, cancel_futures=True)
                self.workers.stop()
                raise

    def _draw(self, summary: dict[str, Any]) -> None:
        try:
            draw_curves(summary, self.root / "curves.png")
        except Exception as error:  # noqa: BLE001 (the numbers are there without a picture)
            self.progress.say(f"curves.png could not be drawn: {error or type(error).__name__}")

    def specs(self) -> dict[str, RunSpec]:
        """By arm, its first run."""
        environment = self.execution.environment()
        return {
            arm.name: spec_of(self.task, arm, self.preset, self.data, self.device, environment)
            for arm in self.arms
        }

    def _folder(self, spec: RunSpec) -> Path:
        return spec.folder(self.root / "runs")

    def _expect(self, specs: list[RunSpec]) -> None:
        folders = {self._folder(spec) for spec in specs}
        waiting = {folder for folder in folders if not (folder / "result.json").is_file()}
        self.progress.expect(len(waiting - self._expected) * self.preset.steps)
        self._expected |= waiting

    def _chosen_result(self, spec: RunSpec) -> dict[str, Any] | None:
        return self.result(spec, is_chosen=True)

    def result(self, spec: RunSpec, *, is_chosen: bool = False) -> dict[str, Any] | None:
        """A run's result, from disk or by doing it; None if it failed.

        A run that was chosen needs its weights too, until it has been tested: they are dropped
        where another rate was better, and may be damaged.
        """
        folder = self._folder(spec)
        result = self._read(folder / "result.json", result_form(spec, self.task))
        if result is not None and (not is_chosen or result["diverged"]):
            return result
        if result is not None:
            if self._read(folder / "test.json", form_of_test(spec, self.task)) or is_complete(
                folder / "model"
            ):
                return result
            self.progress.say(f"{folder.name} has no whole weights to test: the run is done again")
        elif (change := changed_since(folder.parent, spec)) not in {None, *self._changes_told}:
            self._changes_told.add(str(change))
            self.progress.say(f"trained again, since {change} (the earlier run is kept)")
        return self._train(spec, folder)

    def _read(self, path: Path, form: object) -> Any | None:
        content, note = read_or_set_aside(path, form)
        if note is not None:
            self.progress.say(note)
        return content

    def _train(self, spec: RunSpec, folder: Path) -> dict[str, Any] | None:
        label = f"{spec.arm}  lr {spec.learning_rate:g}  seed {spec.seed}"
        if folder not in self._expected:
            self.progress.expect(self.preset.steps)
        self._expected.discard(folder)
        self.progress.begin(label, self.preset.steps)
        write_spec(folder, spec)
        crash = folder / "crash.txt"
        try:
            result = self.workers.run(
                "train",
                self.payload(spec, folder),
                self._on_progress(label),
                self.execution.processes,
            )
        except JobFailed as failure:
            why = legible(failure.why)
            crash.write_text(legible(failure.details).rstrip() + "\n", encoding="utf-8")
            self.failures.append({"run": label, "why": why})
            self.progress.end(label, f"failed: {why} (see {crash})")
            return None
        crash.unlink(missing_ok=True)
        self.progress.end(label, outcome(result, self.task))
        return result

    def payload(self, spec: RunSpec, folder: Path) -> dict[str, Any]:
        """What the job of a training run gets."""
        return {
            "spec": asdict(spec),
            "folder": str(folder),
            "command_started": self.started,
            "logger": self.execution.logger,
        }

    def _on_progress(self, label: str) -> Callable[[dict[str, Any]], None]:
        def tell(message: dict[str, Any]) -> None:
            if "note" in message:
                self.progress.say(f"{label}: {message['note']}")
            elif "step" in message:
                self.progress.advance(label, message["step"], message.get("loss"))

        return tell

    def _drop_weights(self, specs: dict[str, RunSpec], best: dict[str, float | None]) -> None:
        """Drop those of rates not chosen; a rate that is chosen later is trained again."""
        for name, spec in specs.items():
            for rate in self.preset.learning_rates:
                if rate != best[name]:
                    shutil.rmtree(self._folder(spec.at(rate, 0)) / "model", ignore_errors=True)

    def _timing(self, spec: RunSpec) -> dict[str, Any] | None:
        """Units a second of a dot-product arm on torch's own kernel; None for other arms."""
        if spec.attention["score"] != "dot":
            return None
        path = self._folder(spec) / "timing.json"
        timing = self._read(path, timing_form(spec))
        if timing is None:
            try:
                rates = self.workers.run("time_sdpa", {"spec": asdict(spec)}, ignore)
            except (JobFailed, JobMistake) as failure:
                self.notes.append(f"{spec.arm} was not timed on torch's sdpa: {failure}")
                return None
            timing = {"key": spec.key, **rates, "command_started": self.started}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, timing)
        return timing

    def _test(self, spec: RunSpec) -> dict[str, Any] | None:
        """The test score, read once and kept."""
        folder = self._folder(spec)
        kept = self._read(folder / "test.json", form_of_test(spec, self.task))
        if kept is None:
            try:
                payload = {"spec": asdict(spec), "folder": str(folder)}
                score = self.workers.run("test", payload, ignore)
            except JobFailed as failure:
                why = legible(failure.why)
                self.failures.append({"run": f"test of {folder.name}", "why": why})
                return None
            kept = {"key": spec.key, "score": score}
            write_json(folder / "test.json", kept)
        found: dict[str, Any] = kept["score"]
        return found

    def _best_rate(self, results: list[dict[str, Any]]) -> float | None:
        finished = [result for result in results if not result["diverged"]]
        if not finished:
            return None
        best = min(finished, key=lambda result: better_first(result, self.task.choice))
        return float(best["learning_rate"])


def outcome(result: dict[str, Any], task: Task) -> str:
    """How a run ended, in one line."""
    if result["diverged"] and result["divergence"] is None:
        return "diverged (its score on the validation part is not finite)"
    if result["diverged"]:
        where = result["divergence"]
        kept = where["last_checkpoint"]
        return (
            f"diverged at step {where['step']}: {where['where']} is not finite "
            f"({'no checkpoint' if kept is None else kept} before it)"
        )
    headline, validation, speed = task.measures[0], result["validation"], result["speed"]
    measure = headline if headline.field in validation else task.choice
    return (
        f"validation {measure.name} {magnitude(validation[measure.field], measure.digits)}"
        f"{measure.unit}, {result['training_seconds']:.0f} s"
        + (f", {speed:,.0f} {task.unit}/s" if speed is not None else "")
    )


def ignore(message: dict[str, Any]) -> None:
    """For jobs too short to be told about."""
