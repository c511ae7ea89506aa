"""The benchmark: what it measures is right, and what it measured is kept. No time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_attention.backends import native
from neural_attention.bench.cases import CASES, Inputs, Shape
from neural_attention.bench.methods import METHODS
from neural_attention.bench.presets import PRESETS, groups_of
from neural_attention.cli import main

pytestmark = pytest.mark.skipif(
    find_spec("matplotlib") is None or find_spec("rich") is None,
    reason="needs what prints and draws results",
)
needs_kernels = pytest.mark.skipif(native.unavailable_reason() is not None, reason="no kernels")

SMALL = Shape(batch=2, heads=3, head_dim=16, queries=40, keys=40, causal=True, dtype="float32")
BENCH = ["bench", "--preset", "smoke", "--threads", "1", "--quiet"]
ONE = [*BENCH, "--cases", "dot", "--methods", "sdpa", "--repeats", "1"]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def content(folder: Path, name: str = "smoke") -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def entries(group: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(entry["case"], entry["method"]): entry for entry in group["entries"]}


def gradients(name: str, inputs: Inputs) -> dict[str, torch.Tensor]:
    call, leaves = METHODS[name].prepare(inputs)
    with torch.compiler.set_stance("force_eager"):  # what it computes, without compiling
        out = call()
    found = {"out": out.detach()}
    if "cpu" in METHODS[name].trains_on:
        named = {"v": inputs.v}
        named |= {"a": inputs.a, "b": inputs.b} if inputs.case.channels else {}
        named |= {"q": inputs.q, "k": inputs.k} if inputs.case.dot else {}
        assert {id(tensor) for tensor in named.values()} <= {id(leaf) for leaf in leaves}
        grads = torch.autograd.grad(out, list(named.values()), inputs.grad)
        found |= dict(zip(named, grads, strict=True))
    return found


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("triton", "empty")])
@pytest.mark.parametrize("case", [case for case in CASES.values() if not case.dropout_p])
@pytest.mark.parametrize("queries", [40, 1])
def test_every_method_computes_the_same_scores(case, method, queries):
    if not METHODS[method].covers(case):
        pytest.skip("not computed by this method")
    if method in ("native", "operator") and native.unavailable_reason():
        pytest.skip("no kernels")
    shape = Shape(**(SMALL.as_json() | {"queries": queries, "causal": queries > 1}))
    inputs = Inputs(case, shape, "cpu", {})
    expected = gradients("blocked", inputs)
    for name, found in gradients(method, inputs).items():
        torch.testing.assert_close(found, expected[name], atol=2e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [("dot", 128, 5 * 64), ("relu-8", 24 + 64, 2 * 64 + 64), ("hybrid-8", 24 + 128, 5 * 64 + 64)],
)
def test_operations_are_counted_as_the_documentation_says(case, forward, backward):
    counted = CASES[case]
    assert counted.operations(64, backward=False) == forward
    assert counted.operations(64, backward=True) == forward + backward


def test_pairs_that_a_mask_hides_are_not_counted():
    assert SMALL.pairs == 2 * 3 * 40 * 41 // 2
    assert Shape(**(SMALL.as_json() | {"queries": 1})).pairs == 2 * 3 * 40
    assert Shape(**(SMALL.as_json() | {"causal": False})).pairs == 2 * 3 * 40 * 40


def test_the_smoke_preset_ends_with_a_table_a_file_and_a_plot(capsys, tmp_path):
    assert main([*BENCH, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    assert sum("scaled_dot_product_attention" in line for line in lines) >= 2
    result = content(tmp_path)
    assert result["finished"] >= result["started"]
    assert result["conditions"]["threads"] == 1
    assert result["machine"]["versions"]["torch"] in torch.__version__
    assert result["multiply_add_peak"]["per_second"] > 0
    assert [group["shape"]["keys"] for group in result["groups"]] == [32, 64]
    for group in result["groups"]:
        found = entries(group)
        assert {("dot", "sdpa"), ("relu-2", "blocked"), ("relu-2", "published")} <= set(found)
        for entry in found.values():
            for mode in ("forward", "training"):
                times = entry[mode]
                assert len(times["seconds"]) == PRESETS["smoke"].repeats
                assert times["median_s"] > 0
                assert times["share_of_peak"] > 0
                assert times["peak_bytes"] >= 0
        assert found["dot", "sdpa"]["forward"]["ratio"] == 1
    for form in ("png", "svg"):
        assert (tmp_path / f"smoke.{form}").stat().st_size > 1000

    (tmp_path / "smoke.png").unlink()
    assert main([*BENCH, "--out", str(tmp_path), "--plot-only"]) == 0
    assert (tmp_path / "smoke.png").is_file()
    assert content(tmp_path) == result
    assert capsys.readouterr().out == printed.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--preset", "fast"], "invalid choice"),
        (["--cases", "relu-2", "relu"], "unknown case 'relu'"),
        (["--methods", "eager"], "unknown method 'eager'"),
        (["--dtype", "int8"], "unknown dtype 'int8'"),
        (["--lengths", "0"], "lengths is"),
        (["--batch", "-1"], "batches is"),
        (["--head-dim", "0"], "head-dim is 0"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--budget", "nan"], "--budget is nan"),
        (["--threads", "many"], "invalid int"),
        (["--isa", "mmx"], "invalid choice"),
        (["--plot-only"], "run the benchmark first"),
    ],
)
def test_mistakes_of_the_user_end_with_one_message(capsys, tmp_path, options, says):
    assert main([*BENCH, "--out", str(tmp_path / "out"), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(capsys, tmp_path):
    assert main([*BENCH, "--out", str(tmp_path), "--device", "cuda"]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err


def test_a_file_that_is_no_benchmarks_is_refused_and_then_kept(capsys, tmp_path):
    (tmp_path / "smoke.json").write_text("{")
    assert main([*BENCH, "--out", str(tmp_path), "--plot-only"]) == 2
    assert "not the result of a benchmark" in capsys.readouterr().err
    assert main([*ONE, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "smoke-unreadable.json").read_text() == "{"


def test_an_interrupted_benchmark_goes_on_behind_what_it_measured(monkeypatch, capsys, tmp_path):
    from neural_attention.bench import run

    measure, calls = run.measure_group, []

    def interrupt(group, *rest):
        calls.append(group.shape.keys)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(group, *rest)

    monkeypatch.setattr(run, "measure_group", interrupt)
    assert main([*ONE, "--out", str(tmp_path)]) == 130
    before = content(tmp_path)
    assert before["finished"] is None
    assert [group["shape"]["keys"] for group in before["groups"]] == [32]

    assert main([*ONE, "--out", str(tmp_path)]) == 0
    after = content(tmp_path)
    assert calls == [32, 64, 64]
    first, again = before["groups"][0]["entries"][0], after["groups"][0]["entries"][0]
    assert again["forward"]["seconds"] == first["forward"]["seconds"]
    assert after["started"] == before["started"]
    assert after["finished"] is not None


def test_rounds_of_an_unfinished_group_are_on_disk(monkeypatch, tmp_path):
    from neural_attention.bench import run

    def interrupt(group, conditions, stopped, say, save):
        times = {"seconds": [0.5], "calls_per_sample": 1, "peak_bytes": 0}
        save([{"case": "dot", "method": "sdpa", "forward": times}])
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure_group", interrupt)
    assert main([*ONE, "--out", str(tmp_path)]) == 130
    (group,) = content(tmp_path)["groups"]
    assert group["entries"][0]["forward"]["median_s"] == 0.5


def test_a_finished_result_is_kept_when_it_is_measured_again(tmp_path):
    for _ in range(2):
        assert main([*ONE, "--out", str(tmp_path), "--lengths", "8"]) == 0
    assert len(list(tmp_path.glob("smoke*.json"))) == 2


def test_what_takes_too_long_stops_and_says_so(capsys, tmp_path):
    options = ["--budget", "1e-6", "--out", str(tmp_path)]
    assert main([*ONE, *options]) == 0
    first, second = (
        group["entries"][0]["forward"]["skipped"] for group in content(tmp_path)["groups"]
    )
    assert "more than the 1e-06 s allowed" in first
    assert second.startswith("stopped at n = 32: ")
    assert "Not measured: scaled_dot_product_attention" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_what_needs_too_much_memory_stops_and_says_so(monkeypatch, tmp_path):
    from neural_attention.bench import probe

    monkeypatch.setattr(probe, "_memory_limit", lambda: 64 * 2**20)
    options = ["--cases", "relu-8", "--methods", "published", "--lengths", "1024"]
    assert main([*BENCH, *options, "--out", str(tmp_path)]) == 0
    (entry,) = content(tmp_path)["groups"][0]["entries"]
    assert entry["forward"]["skipped"] == "needs more than 0.1 GiB of memory"


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are measured best there")
def test_peak_memory_is_that_of_the_largest_moment(tmp_path):
    options = ["--cases", "relu-8", "--methods", "published", "--lengths", "512"]
    assert main([*BENCH, *options, "--out", str(tmp_path)]) == 0
    (entry,) = content(tmp_path)["groups"][0]["entries"]
    pairs = 2 * 512**2
    # At the least the concatenation of two times 8 numbers of 4 bytes, and 8 hidden units.
    least, most = pairs * 4 * (16 + 8), pairs * 4 * 200
    assert least <= entry["forward"]["peak_bytes"] <= entry["training"]["peak_bytes"] <= most


@needs_kernels
def test_the_overhead_preset_compares_with_an_empty_operator(capsys, tmp_path):
    options = ["bench", "--preset", "overhead", "--threads", "1", "--repeats", "2", "--quiet"]
    assert main([*options, "--out", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Beyond an empty operator of the same schema: native, forward: " in printed
    assert "operator alone, forward + backward: " in printed


@pytest.mark.skipif(native.instruction_sets().get("avx2", "") is not None, reason="no AVX2")
def test_avx2_limits_the_kernels_and_torch_alike(tmp_path):
    out = ["--out", str(tmp_path), "--isa", "avx2"]
    done = subprocess.run(
        [sys.executable, "-m", "neural_attention", *ONE, *out],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = content(tmp_path, "smoke-avx2")
    assert result["machine"]["kernels"]["instruction_set"] == "avx2"
    assert result["machine"]["kernels"]["torch_capability"] == "AVX2"
    assert result["environment"]["MKL_ENABLE_INSTRUCTIONS"] == "AVX2"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_name_what_there_is(name):
    groups = groups_of(PRESETS[name], {})
    assert len({group.shape for group in groups}) == len(groups)
    for group in groups:
        assert set(group.cases) <= set(CASES)
        assert set(group.methods) <= set(METHODS)
    (wider,) = groups_of(PRESETS["smoke"], {"lengths": (8,), "cases": ("relu-16",)})
    assert (wider.shape.keys, wider.cases) == (8, ("relu-16",))
