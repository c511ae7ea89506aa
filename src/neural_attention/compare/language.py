"""The comparison of language models, from the data to the summary."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from neural_attention.compare.arms import Arm, check_arms, parse_arm
from neural_attention.compare.checkpoints import write_json
from neural_attention.compare.curves import draw_curves
from neural_attention.compare.devices import resolve_device, thread_count
from neural_attention.compare.locking import Locked, locked
from neural_attention.compare.presets import LANGUAGE_PRESETS, LanguagePreset
from neural_attention.compare.processes import JobFailed, JobMistake, Workers
from neural_attention.compare.progress import Progress
from neural_attention.compare.runs import RunSpec, spec_of
from neural_attention.compare.store import read_result, write_summary
from neural_attention.compare.summary import summarise
from neural_attention.tasks.text import load_text
from neural_attention.tasks.tokens import PARTS, TokenFiles, tokenise

DEFAULT_ARMS = {
    "current": ("dot", "dot+alibi", "neural"),
    "paper": ("dot", "neural:release+layers=first", "neural+layers=first"),
}


def compare_language_models(
    arms: Sequence[str] | None = None,
    *,
    preset: str = "quick",
    data: str | None = None,
    tokenizer: str | None = None,
    out: str | Path = "comparison",
    seeds: int | None = None,
    learning_rates: Sequence[float] | None = None,
    device: str = "auto",
    model: str | None = None,
    control: bool = False,
    steps: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train language models that differ in attention only, and say what came of it.

    Every arm gets the same data in the same order, the same initial values wherever it can, and
    the same sweep of learning rates at one seed; the best is chosen on the validation part and run
    with the other seeds; the test part is read once, at the end. Each run has a process of its own
    and leaves checkpoints: called again with the same arguments, finished runs are read and an
    interrupted one goes on where it stopped.

    Call it under ``if __name__ == "__main__":`` in a script, as all that starts processes.

    Args:
        arms: names of :func:`neural_attention.compare.parse_arm`; None for the defaults of the
            model.
        preset: a name of :data:`neural_attention.compare.LANGUAGE_PRESETS`.
        data: see :func:`neural_attention.tasks.text.load_text`; None for the preset's.
        tokenizer: see :func:`neural_attention.tasks.tokens.tokenise`; None for the preset's.
        out: folder of results: ``result.json``, ``curves.png`` and a folder for each run.
        seeds: number of seeds at the chosen learning rate; None for the preset's.
        learning_rates: the sweep; None for the preset's.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or ``"mps"``.
        model: ``"current"`` or ``"paper"``; None for the preset's.
        control: add a dot product with wider feed-forward layers, as many parameters as the
            largest arm.
        steps: training steps of a run; None for the preset's.
        progress: what is told meanwhile, and to whom.

    Returns:
        The content of ``result.json``.

    Raises:
        ValueError: an argument that does not fit; the message says which.
        FileNotFoundError, ConnectionError: the data cannot be had.
        OSError: ``out`` cannot be written, or another comparison is writing to it.
        ImportError: a package is missing.
    """
    chosen = choose_preset(preset, model, steps, seeds, learning_rates)
    parsed = [parse_arm(name) for name in arms or DEFAULT_ARMS[chosen.architecture]]
    check_arms(parsed)
    progress = progress if progress is not None else Progress()
    device = resolve_device(device)
    root = _prepare_folder(Path(out))
    workers = Workers(device)
    workers.start_server()
    text = load_text(data or chosen.data)
    progress.say(f"data: {text.source}; sha256 {text.sha256[:16]}")
    files = tokenise(
        text,
        root / "data",
        tokenizer=tokenizer or chosen.tokenizer,
        vocab_size=chosen.vocab_size,
    )
    _check_length(files, chosen)
    counts = ", ".join(f"{files.counts[part]:,} {part}" for part in PARTS)
    progress.say(f"tokens: {counts} ({files.tokenizer})")
    try:
        with locked(root / "lock", wait_s=0):
            comparison = _Comparison(chosen, parsed, asdict(files), device, root, workers, progress)
            return comparison.carry_out(text.source, text.sha256, control=control)
    except Locked:
        raise OSError(
            f"another comparison is writing to {root}: wait for it, or give another folder."
        ) from None


def choose_preset(
    name: str,
    model: str | None = None,
    steps: int | None = None,
    seeds: int | None = None,
    learning_rates: Sequence[float] | None = None,
) -> LanguagePreset:
    """A preset with what the caller changes in it.

    Raises:
        ValueError: an unknown name or model, or a number that makes no sense.
    """
    if name not in LANGUAGE_PRESETS:
        raise ValueError(f"unknown preset {name!r}; known are {', '.join(LANGUAGE_PRESETS)}.")
    preset = LANGUAGE_PRESETS[name]
    if model is not None:
        if model not in DEFAULT_ARMS:
            raise ValueError(f"unknown model {model!r}; known are {', '.join(DEFAULT_ARMS)}.")
        preset = replace(preset, architecture=model)
    if steps is not None:
        if steps < 1:
            raise ValueError(f"steps is {steps}: at least 1 is needed.")
        preset = replace(
            preset,
            steps=steps,
            warmup_steps=min(preset.warmup_steps, steps // 10),
            evaluations=min(preset.evaluations, steps),
        )
    if seeds is not None:
        if seeds < 1:
            raise ValueError(f"seeds is {seeds}: at least 1 is needed.")
        preset = replace(preset, seeds=seeds)
    if learning_rates is not None:
        rates = tuple(learning_rates)
        if not rates or any(not 0 < rate < float("inf") for rate in rates):
            raise ValueError(f"learning rates are {list(rates)}: positive numbers are needed.")
        if len(set(rates)) < len(rates):
            raise ValueError(f"learning rates are {list(rates)}: one is given twice.")
        preset = replace(preset, learning_rates=tuple(sorted(rates)))
    return preset


def _prepare_folder(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        trial = root / ".writable"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise OSError(
            f"cannot write to the output folder {root} ({error.strerror or error}): give another "
            "with --out."
        ) from error
    return root.resolve()


def _check_length(files: TokenFiles, preset: LanguagePreset) -> None:
    for part in PARTS:
        needed = preset.length + (part == "train")
        if files.counts[part] < needed:
            raise ValueError(
                f"the {part} part of the data has {files.counts[part]:,} tokens, and one sequence "
                f"needs {needed:,}: give a longer text."
            )


@dataclass
class _Comparison:
    """One comparison at work: its runs, what they gave, and what failed."""

    preset: LanguagePreset
    arms: list[Arm]
    tokens: dict[str, Any]
    device: str
    root: Path
    workers: Workers
    progress: Progress
    notes: list[str] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    runs_done: int = 0

    def carry_out(self, source: str, text_sha256: str, *, control: bool) -> dict[str, Any]:
        specs = self._specs(control)
        rates, seeds = self.preset.learning_rates, range(self.preset.seeds)
        self._expect([spec.at(rate, 0) for spec in specs.values() for rate in rates])
        self._expect([spec.at(rates[0], seed) for spec in specs.values() for seed in seeds[1:]])

        sweeps: dict[str, list[dict[str, Any]]] = {}
        for name, spec in specs.items():
            found = [self._result(spec.at(rate, 0)) for rate in rates]
            sweeps[name] = [result for result in found if result is not None]
        best = {name: _best_rate(results) for name, results in sweeps.items()}
        self._drop_weights(specs, best)

        final: dict[str, list[dict[str, Any]]] = {name: [] for name in specs}
        for name, rate in best.items():
            if rate is None:
                continue
            for seed in seeds:
                result = self._result(specs[name].at(rate, seed))
                if result is not None and not result["diverged"]:
                    final[name].append(result)
        timings = {name: self._sdpa_rate(spec) for name, spec in specs.items()}
        for name, results in final.items():
            for result in results:
                spec = specs[name].at(result["learning_rate"], result["seed"])
                result["test"] = self._test(spec)

        summary = summarise(
            preset=self.preset,
            specs=specs,
            sweeps=sweeps,
            final=final,
            sdpa=timings,
            notes=self.notes,
            failures=self.failures,
            root=self.root,
        )
        summary["data"] = {
            "source": source,
            "text_sha256": text_sha256,
            **{name: value for name, value in self.tokens.items() if name != "folder"},
        }
        moved = write_summary(self.root, summary)
        if moved is not None:
            self.progress.say(f"the result of another configuration is kept as {moved.name}")
        draw_curves(summary, self.root / "curves.png")
        return summary

    def _specs(self, control: bool) -> dict[str, RunSpec]:
        """The runs of each arm, after trying that every arm can be built."""
        environment = {
            "neural_attention": importlib.metadata.version("neural-attention"),
            "torch": importlib.metadata.version("torch"),
            "transformers": importlib.metadata.version("transformers"),
            "threads": thread_count(),
        }

        def specify(arm: Arm) -> RunSpec:
            return spec_of(arm, self.preset, self.tokens, self.device, environment)

        specs = {arm.name: specify(arm) for arm in self.arms}
        payload = {"specs": [asdict(spec) for spec in specs.values()]}
        counted = self.workers.run("count", payload, _ignore)
        self.notes += counted["notes"]
        if control:
            width = counted["control_feed_forward"]
            arm = parse_arm(f"dot+feed_forward={width}")
            if arm.name not in specs and width > self.preset.intermediate_size:
                specs[arm.name] = specify(arm)
            else:
                self.notes.append(
                    "no control was added: no arm has more parameters than the dot product."
                )
        return specs

    def _folder(self, spec: RunSpec) -> Path:
        return spec.folder(self.root / "runs")

    def _expect(self, specs: list[RunSpec]) -> None:
        waiting = [s for s in specs if not (self._folder(s) / "result.json").is_file()]
        self.progress.expect(len(waiting) * self.preset.steps)

    def _result(self, spec: RunSpec) -> dict[str, Any] | None:
        """A run's result, from disk or by doing it; None if it failed."""
        folder = self._folder(spec)
        result, note = read_result(folder / "result.json", spec.key)
        if note is not None:
            self.progress.say(note)
        can_be_tested = (folder / "model").is_dir() or (folder / "test.json").is_file()
        if result is not None and (can_be_tested or (folder / "not-chosen").is_file()):
            self.runs_done += 1
            return result
        label = f"{spec.arm}  lr {spec.learning_rate:g}  seed {spec.seed}"
        self.progress.begin(label, spec.training["steps"])
        payload = {"spec": asdict(spec), "folder": str(folder)}
        try:
            result = self.workers.run("train", payload, self._on_progress(label))
        except JobFailed as failure:
            why = str(failure).strip()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "crash.txt").write_text(why + "\n", encoding="utf-8")
            self.failures.append({"run": label, "why": why.splitlines()[-1]})
            self.progress.end(f"failed: {why.splitlines()[-1]} (see {folder / 'crash.txt'})")
            return None
        self.runs_done += 1
        self.progress.end(_outcome(result))
        return result

    def _on_progress(self, label: str) -> Callable[[dict[str, Any]], None]:
        def tell(message: dict[str, Any]) -> None:
            if "note" in message:
                self.progress.say(f"{label}: {message['note']}")
            elif "step" in message:
                self.progress.advance(message["step"], message.get("loss"))

        return tell

    def _drop_weights(self, specs: dict[str, RunSpec], best: dict[str, float | None]) -> None:
        """Weights of runs that were not chosen are not needed again; their results stay."""
        for name, spec in specs.items():
            for rate in self.preset.learning_rates:
                folder = self._folder(spec.at(rate, 0))
                if rate != best[name] and (folder / "model").is_dir():
                    (folder / "not-chosen").touch()
                    shutil.rmtree(folder / "model")

    def _sdpa_rate(self, spec: RunSpec) -> float | None:
        """Tokens a second of a dot-product arm on torch's own kernel; None for other arms."""
        if spec.attention["score"] != "dot":
            return None
        path = self._folder(spec).with_suffix(".timing.json")
        timing, _ = read_result(path, spec.key)
        if timing is None:
            try:
                payload = {"spec": asdict(spec)}
                rates = self.workers.run("time_sdpa", payload, _ignore)
            except (JobFailed, JobMistake) as failure:
                last = str(failure).strip().splitlines()[-1]
                self.notes.append(f"{spec.arm} was not timed on torch's sdpa: {last}")
                return None
            timing = {"key": spec.key, **rates}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, timing)
        return float(timing["sdpa"])

    def _test(self, spec: RunSpec) -> dict[str, Any] | None:
        """The test score, read once and kept."""
        folder = self._folder(spec)
        score, _ = read_result(folder / "test.json", spec.key)
        if score is None:
            try:
                payload = {"spec": asdict(spec), "folder": str(folder)}
                measured = self.workers.run("test", payload, _ignore)
            except JobFailed as failure:
                last = str(failure).strip().splitlines()[-1]
                self.failures.append({"run": f"test of {folder.name}", "why": last})
                return None
            score = {"key": spec.key, **measured}
            write_json(folder / "test.json", score)
        return {name: value for name, value in score.items() if name != "key"}


def _ignore(message: dict[str, Any]) -> None:
    """Jobs too short to be told about."""


def _best_rate(results: list[dict[str, Any]]) -> float | None:
    finished = [result for result in results if not result["diverged"]]
    if not finished:
        return None
    return float(min(finished, key=lambda r: r["validation"]["loss"])["learning_rate"])


def _outcome(result: dict[str, Any]) -> str:
    if result["diverged"]:
        return "diverged (the loss is not finite)"
    rate = result["tokens_per_second"]
    shown = f", {rate:,.0f} tokens/s" if rate is not None else ""
    return (
        f"validation perplexity {result['validation']['perplexity']:.2f}, "
        f"{result['training_seconds']:.0f} s{shown}"
    )
