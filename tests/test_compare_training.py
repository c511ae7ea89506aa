"""How runs are trained: in parts, by several processes, in bfloat16, and until they are stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from safetensors.torch import load_file

from neural_attention.cli import main
from neural_attention.compare import compare, parse_arm
from neural_attention.compare.comparison import ignore, spec_of
from neural_attention.compare.divergence import unfit_module, unfit_parameter
from neural_attention.compare.execution import Execution
from neural_attention.compare.jobs import train_in
from neural_attention.compare.presets import choose_preset
from neural_attention.compare.processes import JobFailed, Stopped, Workers
from neural_attention.compare.single import train
from neural_attention.tasks.language import LanguageModelling

from .small_comparisons import TASK, Said

needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch was built without gloo",
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """A run of 12 steps of 4 examples."""
    preset = choose_preset(TASK, "smoke", {})
    source, _ = TASK.read(preset, ignore)
    data = TASK.prepare(source, preset, tmp_path_factory.mktemp("data"), ignore)
    return spec_of(TASK, parse_arm("neural"), preset, data, "cpu", {"threads": 1})


@pytest.fixture(scope="module")
def alone(spec, tmp_path_factory):
    return trained(spec, tmp_path_factory.mktemp("alone"))


def changed(spec, **settings):
    return replace(spec, training={**spec.training, **settings})


def trained(spec, folder, logger="none"):
    """In this process."""
    return train_in(spec, folder, "now", logger, ignore)


def losses(result):
    return [point["loss"] for point in result["training_curve"]]


def assert_equal_runs(one, other):
    assert losses(one) == pytest.approx(losses(other), rel=1e-5)
    assert one["validation"]["loss"] == pytest.approx(other["validation"]["loss"], rel=1e-5)
    assert one["data_order_sha256"] == other["data_order_sha256"]


def test_a_step_in_parts_is_the_step(spec, alone, tmp_path):
    assert len(losses(alone)) == 3
    assert_equal_runs(trained(changed(spec, accumulation=2), tmp_path), alone)


@needs_gloo
@pytest.mark.parametrize(("sharding", "parts"), [("ddp", 2), ("fsdp", 1)])
def test_two_processes_are_one(spec, alone, tmp_path, sharding, parts):
    shared = changed(spec, accumulation=parts)
    shared = replace(shared, environment={"threads": 1, "processes": 2, "sharding": sharding})
    payload = {
        "spec": vars(shared),
        "folder": str(tmp_path),
        "command_started": "now",
        "logger": "none",
    }
    result = Workers("cpu").run("train", payload, ignore, processes=2)
    assert_equal_runs(result, alone)
    assert json.loads((tmp_path / "result.json").read_text()) == result
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert sum(value.numel() for value in weights.values()) >= alone["parameters"]


@needs_gloo
def test_torchrun_trains_what_compare_finds(tmp_path):
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "neural_attention", "train", "lm", "dot", "--preset", "smoke", "--device", "cpu"),
        *("--out", str(tmp_path), "--json", "--quiet", "--log-to", "none"),
    ]
    path = os.pathsep.join(one for one in sys.path if one)
    found = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    result = json.loads(found.stdout)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = train("lm", "dot", preset="smoke", out=tmp_path, device="cpu",
                      execution=Execution(processes=2))  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    assert again == result


def test_a_process_that_dies_ends_the_others(spec, tmp_path):
    long = changed(spec, steps=100_000, evaluations=100_000)
    payload = {"spec": vars(long), "folder": str(tmp_path), "command_started": "", "logger": "none"}
    workers, told = Workers("cpu"), threading.Event()

    def kill(message):
        if not told.is_set():
            told.set()
            os.kill(max(process.pid for process in workers._processes), signal.SIGKILL)

    with pytest.raises(JobFailed, match=r"SIGKILL|[Cc]onnection|gloo"):
        workers.run("train", payload, kill, processes=2)
    assert not workers._processes


def test_bfloat16_computes_coarsely_and_keeps_float32(spec, alone, tmp_path):
    result = trained(changed(spec, bf16=True), tmp_path)
    assert losses(result) == pytest.approx(losses(alone), rel=1e-2)
    assert losses(result) != pytest.approx(losses(alone), rel=1e-6)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float32}
    # Scores are taken in float32, of the weights that are kept.
    model = TASK.load(tmp_path / "model", spec)
    assert TASK.score(model, spec, "validation") == pytest.approx(result["validation"])


def test_a_run_that_gets_no_better_stops_and_keeps_its_best(spec, tmp_path, monkeypatch):
    points = iter([3.0, 2.0, 2.5, 2.4, 1.0])
    monkeypatch.setattr(LanguageModelling, "curve_point", lambda *_: next(points))
    patient = changed(spec, patience=2, steps=10, evaluations=5)
    result = trained(patient, tmp_path / "stopped")
    assert (result["steps"], [point["step"] for point in result["curve"]]) == (8, [2, 4, 6, 8])
    # With one point of patience more, a run as long goes on; what it had at step 4 is what is kept.
    points = iter([3.0, 2.0, 2.5, 2.4, 2.3])
    longer = trained(changed(patient, patience=4), tmp_path / "whole")
    assert longer["steps"] == 10
    assert longer["validation"] == pytest.approx(result["validation"])
    points = iter([3.0] * 5)
    to_the_end = trained(changed(patient, patience=None), tmp_path / "last")
    assert to_the_end["validation"]["loss"] != pytest.approx(result["validation"]["loss"], rel=1e-4)


def test_a_run_that_diverges_says_when_and_where(spec, tmp_path, capsys):
    wild = replace(changed(spec, evaluations=12), learning_rate=1e30)
    result = trained(wild, tmp_path)
    assert result["diverged"]
    assert result["validation"] is None
    assert 1 < result["divergence"]["step"] <= 12
    assert "parameter " in result["divergence"]["where"]
    # The last good checkpoint is kept, and its values are finite.
    last = result["divergence"]["last_checkpoint"]
    assert last == f"checkpoint-{result['divergence']['step'] - 1}"
    weights = load_file(tmp_path / "checkpoints" / last / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())
    capsys.readouterr()  # what other libraries say of the run in this process
    command = ["train", "lm", "neural", "--preset", "smoke", "--learning-rate", "1e30", "--quiet"]
    assert main([*command, "--out", str(tmp_path / "out"), "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert "the run diverged at step" in said
    assert len(said.splitlines()) == 1


def test_the_first_place_that_is_not_finite_is_named():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
    x = {"input": torch.ones(1, 2)}
    assert unfit_parameter(model) is None
    assert unfit_module(model, x) is None
    with torch.no_grad():
        model[2].weight.fill_(3e38)
        model[0].weight.fill_(9.0)
    assert unfit_module(model, x) == "2"
    with torch.no_grad():
        model[0].bias[1] = torch.nan
    assert unfit_parameter(model) == "0.bias"


def test_curves_are_written_for_tensorboard(spec, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = trained(spec, tmp_path, Execution().logger)
    events = accumulator.EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert {"train/loss", "eval/loss", "train/learning_rate"} <= set(events.Tags()["scalars"])
    written = [(event.step, event.value) for event in events.Scalars("eval/loss")]
    kept = [(point["step"], point["validation_loss"]) for point in result["curve"]]
    assert [step for step, _ in written] == [step for step, _ in kept]
    assert [loss for _, loss in written] == pytest.approx([loss for _, loss in kept])


def test_runs_at_once_give_what_they_give_one_after_the_other(tmp_path):
    settings = {"preset": "smoke", "seeds": 2, "device": "cpu"}
    threads = torch.get_num_threads()
    results = {}
    try:
        for jobs in (1, 2):
            torch.set_num_threads(jobs)  # one for each run
            said = Said()
            results[jobs] = compare("lm", ["dot", "neural"], out=tmp_path / str(jobs),
                                    execution=Execution(jobs=jobs, log_to="none"), progress=said,
                                    **settings)  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    for name, arm in results[1]["arms"].items():
        other = results[2]["arms"][name]
        assert arm["test"] == other["test"]
        points = [[(point["step"], point["validation_loss"]) for curve in one["curves"]
                   for point in curve] for one in (arm, other)]  # fmt: skip
        assert points[0] == points[1]
    assert results[1]["key"] == results[2]["key"]
    assert any("2 runs were at work at once" in note for note in results[2]["notes"])


def test_stopped_workers_end_their_jobs_and_begin_no_more(spec, tmp_path):
    long = changed(spec, steps=100_000)
    workers, ended, begun = Workers("cpu"), [], threading.Barrier(3)

    def work(name):
        payload = {"spec": vars(long), "folder": str(tmp_path / name), "command_started": "",
                   "logger": "none"}  # fmt: skip
        waited = []
        try:
            workers.run("train", payload, lambda _: waited or waited.append(begun.wait()))
        except Stopped:
            ended.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    begun.wait(timeout=120)
    workers.stop()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(ended) == ["a", "b"]
    with pytest.raises(Stopped):
        workers.run("train", {}, ignore)


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent as a signal")
def test_ctrl_c_ends_runs_at_once_without_a_failure(tmp_path):
    command = [
        *(sys.executable, "-m", "neural_attention", "compare", "lm", "--preset", "smoke"),
        *("--steps", "100000", "--jobs", "2", "--device", "cpu", "--out", str(tmp_path)),
    ]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("runs/*/lock"))) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "failed" not in said
    assert not list(tmp_path.glob("runs/*/crash.txt"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"jobs": 0}, "jobs is 0"),
        ({"processes": 0}, "processes is 0"),
        ({"sharding": "zero"}, "unknown sharding 'zero'; known are ddp, fsdp"),
        ({"log_to": "paper"}, "cannot log to 'paper'; known are tensorboard"),
    ],
)
def test_ways_of_working_that_make_no_sense_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        Execution(**changes)


def test_what_cannot_be_shared_is_refused():
    preset = choose_preset(TASK, "smoke", {}, accumulation=2)
    with pytest.raises(ValueError, match="4 examples cannot be shared by 3 processes"):
        Execution(processes=3).check(preset, "cpu")
    with pytest.raises(ValueError, match="need as many GPUs"):
        Execution(processes=2).check(preset, "cuda:0")
    Execution(processes=2).check(preset, "cpu")


def test_a_single_run_refuses_what_it_cannot_train(tmp_path, capsys):
    command = ["train", "lm", "dot+kv_heads=3", "--preset", "smoke", "--quiet"]
    assert main([*command, "--out", str(tmp_path), "--device", "cpu"]) == 2
    assert "kv_heads" in capsys.readouterr().err
    assert main(["train", "lm", "dot", "--seed", "-1", "--out", str(tmp_path)]) == 2
    assert "seed is -1" in capsys.readouterr().err


def test_a_single_run_that_crashes_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    def crash(self, kind, payload, *_):
        if kind == "train":
            Path(payload["folder"]).mkdir(parents=True, exist_ok=True)
            raise JobFailed("MemoryError: too large", "Traceback: at length")
        return {"parameters": {}, "control_feed_forward": 1, "notes": []}

    monkeypatch.setattr(Workers, "run", crash)
    command = ["train", "lm", "dot", "--preset", "smoke", "--quiet", "--out", str(tmp_path)]
    assert main([*command, "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert "the run failed: MemoryError: too large (see " in said
    assert "at length" in next(tmp_path.glob("runs/*/crash.txt")).read_text()
