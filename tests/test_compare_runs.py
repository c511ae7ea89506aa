"""Jobs in their own processes, and whole comparisons in small."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from neural_attention.compare import compare
from neural_attention.compare.curves import draw_curves
from neural_attention.compare.processes import JobFailed, JobMistake, Workers

from .small_comparisons import Said, spec_content

# Jobs in their own processes


def test_a_job_that_crashes_is_told_apart_from_a_mistake():
    workers = Workers("cpu")
    with pytest.raises(JobFailed, match="KeyError"):
        workers.run("train", {}, lambda message: None)
    bad = {
        "specs": [spec_content(attention={"score": "dot", "projection": "mlp", "bias": 3, "x": 1})],
        "control": False,
    }
    with pytest.raises(JobMistake, match="arm 'odd'"):
        workers.run("count", bad, lambda message: None)


def test_a_crash_is_told_in_one_line_and_kept_at_length():
    with pytest.raises(JobFailed) as failed:
        Workers("cpu").run("train", {}, lambda message: None)
    assert failed.value.why == "KeyError: 'spec'"
    assert failed.value.details.startswith("Traceback")


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent as a signal")
def test_ctrl_c_does_not_wait_for_the_import_of_the_fork_server(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import pathlib, sys, time\n"
        "if 'forkserver' in ' '.join(sys.orig_argv):\n"
        f"    pathlib.Path({str(tmp_path / 'importing')!r}).touch()\n"
        "    time.sleep(300)\n"
    )
    code = (
        "from neural_attention.compare import processes\n"
        "processes._MODULE = 'slow'\n"
        "processes.Workers('cpu').run('count', {}, print)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        start_new_session=True,
        # A test run in the background may have inherited that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "importing").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)


# Whole comparisons


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    arguments = {
        "preset": "smoke",
        "out": folder,
        "learning_rates": [1e-3, 1e-2],
        "seeds": 2,
        "device": "cpu",
        "control": True,
    }
    return compare("lm", ["dot", "neural"], **arguments), folder, arguments


def test_a_comparison_keeps_the_protocol_and_says_so(comparison):
    summary, folder, _ = comparison
    assert list(summary["arms"])[:2] == ["dot", "neural"]
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(summary))
    protocol = summary["protocol"]
    assert set(protocol["data_order"]) == {"0", "1"}
    assert all(order["same_for_all_arms"] for order in protocol["data_order"].values())
    assert protocol["initial_values"]["dot"]["own"] == []
    assert any("score_network" in name for name in protocol["initial_values"]["neural"]["own"])
    assert set(map(tuple, protocol["learning_rates_tried"].values())) == {(1e-3, 1e-2)}
    assert summary["runs"] == 3 * 2 + 3
    assert summary["failures"] == []


def test_each_arm_is_reported_at_its_best_rate_on_the_validation_part(comparison):
    summary, _, _ = comparison
    for arm in summary["arms"].values():
        best = min(arm["sweep"], key=lambda tried: tried["validation"]["perplexity"])
        assert arm["learning_rate"] == best["learning_rate"]
        assert [result["seed"] for result in arm["results"]] == [0, 1]
        assert all(result["learning_rate"] == best["learning_rate"] for result in arm["results"])


def test_costs_stand_beside_the_scores(comparison):
    summary, _, _ = comparison
    for name, arm in summary["arms"].items():
        assert arm["test"]["perplexity"] > 1
        assert 0 < arm["test"]["bits_per_byte"] < 8
        for cost in ("parameters", "speed", "training_seconds", "peak_memory_mib"):
            assert arm[cost] > 0, (name, cost)
        assert (arm["sdpa_speed"] is not None) == (name != "neural")
        assert len(arm["curves"][0]) >= 2


def test_each_arm_that_is_timed_on_torchs_kernel_has_a_file_of_its_own(comparison):
    summary, folder, _ = comparison
    timed = [path.parent.name for path in folder.glob("runs/*/timing.json")]
    assert len(timed) == sum(name != "neural" for name in summary["arms"]) == 2
    # Nothing but runs lies beside the runs: a rate's dot is no ending of a file's name.
    assert all(path.is_dir() for path in folder.glob("runs/*"))


def test_the_control_has_as_many_parameters_as_the_largest_arm(comparison):
    summary, _, _ = comparison
    control = next(name for name in summary["arms"] if "feed_forward" in name)
    sizes = {name: arm["parameters"] for name, arm in summary["arms"].items()}
    assert sizes["neural"] <= sizes[control] < 1.1 * sizes["neural"]


def test_the_test_part_is_read_for_chosen_runs_alone(comparison):
    summary, folder, _ = comparison
    tested = {path.parent.name for path in folder.glob("runs/*/test.json")}
    assert tested == set(summary["protocol"]["test_was_read_for"])
    assert len(tested) == 3 * 2
    for name, arm in summary["arms"].items():
        mine = [run for run in tested if run.startswith(name.replace("+", "_") + "_lr")]
        assert all(f"_lr{arm['learning_rate']:g}_" in run for run in mine)


def test_curves_are_drawn_and_say_what_they_are_of(comparison, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    summary, folder, _ = comparison
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda f, *a, **k: (drawn.append(f), save(f, *a, **k)))
    # Neither mathematics nor letters that the font lacks stop the drawing.
    source = {**summary["data"], "source": "$_{ \u6587 a file of a long path" + "/folder" * 40}
    draw_curves({**summary, "data": source}, tmp_path / "curves.png")
    (axes,) = drawn[0].axes
    label = axes.get_ylabel().replace("\n", " ")
    assert "the first 256 tokens of that part, in windows of 32 without overlap" in label
    trained = f"M parameters, {summary['data']['counts']['train']:,} training tokens of $_{{"
    assert trained in axes.get_title().replace("\n", " ")
    assert "first 256 tokens" in summary["protocol"]["curves"]


def test_a_second_call_trains_nothing_and_says_the_same(comparison):
    summary, folder, arguments = comparison
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*.json")}
    again = compare("lm", ["dot", "neural"], **arguments)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*.json")} == before
    assert json.dumps(again["arms"]) == json.dumps(summary["arms"])


def test_a_finished_run_whose_result_is_damaged_is_done_again_with_the_same_numbers(comparison):
    summary, folder, arguments = comparison
    rate = summary["arms"]["neural"]["learning_rate"]
    (run,) = folder.glob(f"runs/neural_lr{rate:g}_seed0_*")
    (run / "result.json").write_bytes(b"\x00")
    again = compare("lm", ["dot", "neural"], **arguments)
    assert (run / "result.json.unreadable").is_file()
    for part in ("validation", "test"):
        assert again["arms"]["neural"][part] == summary["arms"]["neural"][part]
    # Its speed is of another moment than the others'.
    assert len(again["protocol"]["speed_measured_by_commands_of"]) == 2
    assert any("measured by 2 commands" in note for note in again["notes"])
    assert not any("commands" in note for note in summary["notes"])


def command(folder: Path, *more: str) -> list[str]:
    options = ["--preset", "smoke", "--device", "cpu", "--out", str(folder), "--quiet", "--json"]
    return [sys.executable, "-m", "neural_attention.cli", "compare", "lm", *options, *more]


def wait_for_checkpoint(process: subprocess.Popen, folder: Path) -> Path:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = sorted(folder.glob("runs/*/checkpoints/*/complete.json"))
        if found:
            return found[0].parent
        assert process.poll() is None, "the command ended before its first checkpoint"
        time.sleep(0.01)
    raise AssertionError("no checkpoint came")


def numbers_of(folder: Path) -> dict:
    (path,) = folder.glob("runs/dot*/result.json")
    result = json.loads(path.read_text())
    kept = ("validation", "data_order_sha256", "diverged", "parameters")
    losses = [(point["step"], point["loss"]) for point in result["training_curve"]]
    return {
        **{name: result[name] for name in kept},
        "losses": losses,
        "curve": [(point["step"], point["validation_loss"]) for point in result["curve"]],
        "from": result["resumed_from"],
    }


def test_a_killed_run_goes_on_where_it_stopped_and_ends_with_the_same_numbers(tmp_path):
    import psutil

    options = ("--arms", "dot+layers=first", "--steps", "400")
    # As many threads as this process has, which goes on with the run.
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        command(killed, *options),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    checkpoint = wait_for_checkpoint(process, killed)
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for member in family:
        member.send_signal(signal.SIGKILL)
    process.wait()
    psutil.wait_procs(family, timeout=20)
    assert not list(killed.glob("runs/*/result.json")), "it was too quick to be killed"
    # A later checkpoint, half written when the power went.
    half = checkpoint.with_name("checkpoint-398")
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")

    said = Said()
    arguments = {"preset": "smoke", "device": "cpu", "steps": 400}
    summary = compare("lm", ["dot+layers=first"], out=killed, progress=said, **arguments)
    assert any("checkpoint-398 was incomplete or damaged" in line for line in said.lines)
    compare("lm", ["dot+layers=first"], out=whole, **arguments)
    assert any("its speed is of more than one moment" in note for note in summary["notes"])
    resumed, straight = numbers_of(killed), numbers_of(whole)
    assert resumed.pop("from") is not None
    assert straight.pop("from") is None
    assert resumed == straight


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent as a signal")
@pytest.mark.parametrize("moment", ["lock", "runs/*/lock"], ids=["importing", "training"])
def test_ctrl_c_ends_with_130_and_says_how_to_go_on(tmp_path, moment):
    process = subprocess.Popen(
        command(tmp_path, "--arms", "dot", "--steps", "100000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test run in the background may have inherited that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(moment)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.strip().splitlines() == [
        "neural-attention: stopped. What is finished is kept; the same command goes on from there."
    ]
