"""The report of comparisons: what it reads, what it writes, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("plotly")

from neural_attention.cli import main
from neural_attention.compare import compare
from neural_attention.compare.execution import Execution
from neural_attention.report.checks import checks_of, verdicts
from neural_attention.report.plots import COLOURS, DASHES, plots_of, style
from neural_attention.report.results import differences, read_result
from neural_attention.report.results_page import page_of, write_report
from neural_attention.report.table import as_csv, as_markdown, headline_table
from neural_attention.tasks.task import FORMAT

from .results import result_of, write_result

LOSSES = {"dot": [3.0, 3.1, 3.2], "neural": [2.9, 3.05, 3.1], "dot+feed_forward=9": [2.95] * 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_result(tmp_path_factory.mktemp("comparison"), LOSSES)


# What compare writes is what the report reads


def test_a_comparison_ends_with_its_report(tmp_path, capsys):
    command = ["compare", "lm", "--preset", "smoke", "--arms", "dot", "neural", "--device", "cpu"]
    assert main([*command, "--seeds", "2", "--quiet", "--out", str(tmp_path)]) == 0
    assert f"{tmp_path}/report.html" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    result = read_result(tmp_path)
    assert result["statement"] in page.replace("&#x27;", "'")
    begin = "neural-attention compare lm --preset smoke --device cpu --arms dot neural "
    assert result["command"].startswith(begin)
    assert result["preset_name"] == "smoke"
    assert set(result["machine"]) >= {"machine", "versions", "threads", "gpu", "commit"}
    points = plots_of(result)[0]["series"][0]["x"]
    assert points["steps"] == [4, 8, 12]
    assert points["units"] == [step * 4 * 32 for step in points["steps"]]
    assert points["seconds"] == sorted(points["seconds"])
    assert points["seconds"][-1] == pytest.approx(
        result["arms"]["dot"]["results"][0]["training_seconds"]
    )
    # The command that the page gives is one that reads the finished runs.
    words = result["command"].split()[1:]
    assert main([*words, "--quiet", "--out", str(tmp_path)]) == 0
    assert read_result(tmp_path)["runs"] == result["runs"]


def test_a_report_that_cannot_be_written_costs_no_result(tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise ImportError("plotly is gone")

    monkeypatch.setattr("neural_attention.report.results_page._plotly", fail)
    command = ["compare", "lm", "--preset", "smoke", "--arms", "dot", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "the report was not written: plotly is gone" in told.err
    assert "report.html" not in told.out
    assert (tmp_path / "result.json").is_file()


# Tables and files


def test_the_table_has_means_intervals_and_marks(tmp_path):
    table = headline_table(result_of(LOSSES, tmp_path))
    column = {name: [row[i] for row in table.rows] for i, name in enumerate(table.head)}
    assert column["arm"] == list(LOSSES)
    mean = math.exp(3.1)
    # t of 0.975 and two degrees of freedom, times the standard error of 3.0, 3.1 and 3.2.
    half = 4.302653 * 0.1 / math.sqrt(3)
    low, high = mean / math.exp(half), mean * math.exp(half)
    assert column["test perplexity"][0] == f"{mean:.2f} ({low:.2f} to {high:.2f})"
    assert column["ratio to dot"][0] == "–"
    assert re.fullmatch(r"0\.\d{3} \(0\.\d{3} to \d\.\d{3}\)", column["ratio to dot"][1])
    assert table.marks == (("reference",), (), ("best",))
    assert column["parameters"] == ["100"] * 3
    single = headline_table(result_of({"dot": [3.0], "neural": [2.0]}, tmp_path))
    assert single.rows[1][3] == "0.368 (one seed)"


def test_markdown_and_csv_hold_the_numbers_and_no_markup(tmp_path):
    names = ("a|b*c_d", "=1+1")
    result = result_of({names[0]: [3.0, 3.1], names[1]: [2.0, 2.1]}, tmp_path)
    markdown = as_markdown(headline_table(result)).splitlines()
    assert len({line.replace("\\|", "").count("|") for line in markdown}) == 1
    assert r"a\|b\*c\_d" in markdown[2]
    rows = list(csv.DictReader(io.StringIO(as_csv(result))))
    assert [row["arm"] for row in rows] == [names[0]] * 3 + ["'=1+1"] * 3
    assert [row["seed"] for row in rows] == ["mean", "0", "1"] * 2
    assert float(rows[1]["test_perplexity"]) == pytest.approx(math.exp(3.0))
    assert float(rows[0]["test_perplexity"]) == pytest.approx(math.exp(3.05))


def test_the_command_writes_the_page_and_what_papers_need(folder, tmp_path, capsys):
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert 3e6 < len(page.encode()) < 10e6
    names = {path.name for path in (folder / "report").iterdir()}
    plots = {"curves-steps", "curves-units", "curves-seconds", "sweep", "costs-seconds",
             "costs-parameters", "costs-memory"}  # fmt: skip
    expected = {f"{plot}.{form}" for plot in plots for form in ("svg", "png")}
    assert names == expected | {"table.md", "table.csv"}
    assert (folder / "report" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "report" / "sweep.svg").read_text().lstrip().startswith("<?xml")


def test_arms_are_told_apart_by_more_than_colour(tmp_path):
    crowded = result_of({f"arm{index}": [3.0] for index in range(4 * len(COLOURS))}, tmp_path)
    looks = [style(index) for index in range(4 * len(COLOURS))]
    assert len({(look["light"], look["dash"]) for look in looks}) == len(looks)
    assert len({look["marker"] for look in looks[: len(COLOURS)]}) == len(COLOURS)
    assert {look["dash"] for look in looks[:4]} == set(DASHES)
    swatches = re.findall("<svg.*?</svg>", page_of({"": crowded}, [], ""))
    assert len(set(swatches)) == len(crowded["arms"])


def test_scores_too_far_apart_for_an_interval_are_shown(tmp_path):
    folder = write_result(tmp_path, {"dot": [3.0, 300.0], "neural": [2.0, 2.1]})
    assert headline_table(read_result(folder)).rows[0][1].endswith("∞)")
    assert "low" not in plots_of(read_result(folder))[2]["series"][0]
    assert main(["report", str(folder)]) == 0


def test_curves_have_the_seeds_of_their_runs(tmp_path):
    result = result_of({"dot": [3.0, 3.1, 3.2]}, tmp_path)
    for part in ("results", "curves"):
        del result["arms"]["dot"][part][1]
    labels = [one["label"] for one in plots_of(result)[0]["series"]]
    assert labels == ["seed 0", "seed 2"]


def test_what_is_missing_where_none_says_so_runs_here(folder):
    result = read_result(folder)
    machine = {"backends": {"native": None, "triton": "no GPU"}, "commit": None}
    page = page_of({"": {**result, "machine": machine}}, [], "")
    assert "<dt>backends · native</dt><dd>runs here</dd>" in page
    assert "<dt>backends · triton</dt><dd>no GPU</dd>" in page
    assert "<dt>commit</dt><dd>none</dd>" in page


# The protocol in words


def minded(result: dict) -> str:
    return " ".join(text for word, text in checks_of(result) if word == "mind")


def test_rules_that_held_are_told_from_those_that_did_not(tmp_path):
    result = result_of(LOSSES, tmp_path)
    assert minded(result) == ""
    result["protocol"]["data_order"]["0"]["same_for_all_arms"] = False
    assert minded(result) == "Data order the same for all arms: no"
    result = result_of(LOSSES, tmp_path)
    result["protocol"]["initial_values"]["neural"]["shared"] = 0
    assert "nothing is shared by neural" in minded(result)
    result = result_of(LOSSES, tmp_path)
    result["arms"]["neural"]["results"][0]["dead_heads"] = {"at_start": {"0": [1]}}
    assert minded(result) == "Dead score networks: see the notes"


def test_seeds_are_those_that_have_results_in_both_arms(tmp_path):
    assert "at least three are needed" in minded(
        result_of({"dot": [3.0], "neural": [2.0]}, tmp_path)
    )
    result = result_of({"dot": [3.0] * 5, "neural": [2.0, 2.1, 2.2]}, tmp_path)
    assert minded(result) == "5 seeds, paired; of fewer there are results in both arms: neural 3"


def test_test_scores_beside_those_shown_are_minded(tmp_path):
    for number in range(3):
        run = tmp_path / "runs" / f"run{number}"
        run.mkdir(parents=True)
        (run / "test.json").write_text("{}")
    assert minded(result_of({"dot": [3.0] * 3}, tmp_path)) == ""
    assert "3 runs, after the choice, of which 1 are shown" in minded(
        result_of({"dot": [3.0]}, tmp_path)
    )


def test_a_control_has_as_many_parameters_as_the_largest_arm(tmp_path):
    result = result_of(LOSSES, tmp_path)
    result["arms"]["neural"]["parameters"] = 200
    assert "no control has as many" in minded(result)
    result["arms"]["dot+feed_forward=9"]["parameters"] = 199
    assert minded(result) == ""
    assert any("dot+feed_forward=9 is a dot product with as many" in text
               for _, text in checks_of(result))  # fmt: skip


def test_every_arm_is_told_apart_or_not(tmp_path):
    losses = {"dot": [3.0, 3.1, 3.2], "better": [2.0, 2.1, 2.2], "worse": [4.0, 4.1, 4.2]}
    losses["alike"] = [2.9, 3.2, 3.2]
    assert verdicts(result_of(losses, tmp_path)) == (
        "Told apart from dot: better (better, 3 seeds), worse (worse, 3 seeds). "
        "Not told apart: alike (3 seeds)."
    )
    single = result_of({"dot": [3.0], "neural": [2.0]}, tmp_path)
    assert verdicts(single) == "One seed tells no arm apart from dot."
    assert verdicts(result_of({"dot": [3.0]}, tmp_path)) == ""


# Several comparisons


def test_several_comparisons_stand_in_one_page_and_say_in_what_they_differ(folder, tmp_path):
    one = read_result(folder)
    same = json.loads(json.dumps(one))
    assert differences([one, same]) == []
    other = {**one, "data": {**one["data"], "sha256": "ff"}}
    assert differences([one, other]) == ["the data"]
    larger = {**one, "preset": {**one["preset"], "hidden_size": 512, "seeds": 1, "data": "there"}}
    assert differences([one, larger]) == ["settings (hidden_size)"]
    page = page_of({"first": one, "second": other}, [], "")
    assert "These comparisons differ in the data" in page
    assert page.count('<section class="run"') == 2
    assert "may be read side by side" in page_of({"first": one, "second": same}, [], "")
    again, left_out = write_report([folder, tmp_path, f"{folder}/"], tmp_path / "page.html")
    assert again.read_text().count('<section class="run"') == 1
    assert len(left_out) == 1
    assert "is empty" in left_out[0]


# What cannot be shown


def _broken(folder: Path, kind: str) -> Path:
    if kind == "missing":
        return folder / "absent"
    folder.mkdir(exist_ok=True)
    if kind == "other":
        (folder / "notes.txt").write_text("mine")
    if kind == "half":
        for number in range(3):
            run = folder / "runs" / f"run{number}"
            run.mkdir(parents=True)
            (run / "spec.json").write_text("{}")
        (folder / "runs" / "run0" / "result.json").write_text("{}")
    if kind == "run":
        for name in ("spec.json", "result.json"):
            (folder / name).write_text("{}")
    if kind == "file":
        folder /= "result.json"
        folder.write_text("{}")
    if kind == "expressivity":
        (folder / "result.json").write_text('{"format": 1, "targets": {}}')
    if kind == "cut off":
        (folder / "result.json").write_text('{"format": 3, "arms": {')
    if kind in ("newer", "earlier"):
        number = FORMAT + (1 if kind == "newer" else -1)
        (folder / "result.json").write_text(json.dumps({"format": number}))
    if kind == "lacking":
        result = result_of({"dot": [3.0]}, folder)
        del result["arms"]["dot"]["curves"]
        (folder / "result.json").write_text(json.dumps(result))
    result = result_of({"dot": [3.0]}, folder) if folder.is_dir() else {}
    changes = {
        "reference": {"reference": "gone"},
        "measures": {"measures": []},
        "decimals": {"measures": [{**one, "digits": 99} for one in result.get("measures", ())]},
    }
    if kind in changes:
        (folder / "result.json").write_text(json.dumps(result | changes[kind]))
    if kind in ("words", "zero", "vast"):
        score = result["arms"]["dot"]["results"][0]["test"]
        values = {"words": ("perplexity", "low"), "zero": ("perplexity", 0),
                  "vast": ("bits_per_byte", 1e300)}  # fmt: skip
        score.update([values[kind]])
        (folder / "result.json").write_text(json.dumps(result))
    if kind == "curves":
        result["arms"]["dot"]["curves"].append([])
        (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing", "there is no folder"),
        ("empty", "has no result.json: it is empty"),
        ("other", "no comparison has written to it"),
        ("half", "its comparison has not ended (1 of 3 runs done"),
        ("run", "is the folder of a single run: give the folder of its comparison"),
        ("file", "is a file: give the folder"),
        ("expressivity", "is of compare expressivity, which has no report"),
        ("cut off", "is damaged: it is no result of a comparison"),
        ("newer", "of a newer neural-attention"),
        ("earlier", "of an earlier neural-attention"),
        ("lacking", "a part of it is missing"),
        *(
            (kind, "a part of it is missing")
            for kind in ("reference", "measures", "decimals", "words", "zero", "vast", "curves")
        ),
    ],
)
def test_a_folder_that_cannot_be_shown_is_named(kind, says, tmp_path, capsys):
    assert main(["report", str(_broken(tmp_path / "run", kind))]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1


def test_what_can_be_shown_is_shown(folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    broken = _broken(tmp_path / "run", "cut off")
    assert main(["report", str(broken), str(folder), "--out", str(out)]) == 1
    assert "left out:" in capsys.readouterr().err
    assert "is damaged" in out.read_text()
    assert main(["report", str(broken), str(tmp_path / "absent")]) == 2
    assert main(["report", str(folder), "--out", str(tmp_path)]) == 2


def test_a_page_never_takes_the_place_of_a_result(folder, capsys):
    before = (folder / "result.json").read_bytes()
    assert main(["report", str(folder), "--out", str(folder / "result.json")]) == 2
    assert "ends in .html" in capsys.readouterr().err
    assert (folder / "result.json").read_bytes() == before


def test_failures_notes_and_arms_without_a_result_are_shown(tmp_path):
    failures = [{"run": "neural lr 1", "why": "MemoryError"}]
    result = result_of({"dot": [3.0], "neural": [2.0]}, tmp_path, failures=failures,
                       notes=["a note"])  # fmt: skip
    result["arms"]["neural"] |= {
        "test": {}, "validation": {}, "results": [], "curves": [], "speed": None,
        "learning_rate": None, "against_reference": None, "peak_memory_mib": None,
        "training_seconds": None, "parameters": None, "units_per_step": None,
        "sweep": [{"learning_rate": 1.0, "diverged": True, "validation": None}],
    }  # fmt: skip
    (tmp_path / "result.json").write_text(json.dumps(result))
    page = page_of({"it": read_result(tmp_path)}, [], "")
    assert "neural lr 1: MemoryError" in page
    assert "a note" in page
    assert main(["report", str(tmp_path)]) == 0


def test_compare_from_python_gives_what_the_report_reads(tmp_path):
    rates, execution = [0.0012345678], Execution(jobs=2)
    compare("lm", ["dot"], preset="smoke", out=tmp_path, device="cpu", steps=2,
            learning_rates=rates, execution=execution)  # fmt: skip
    command = read_result(tmp_path)["command"]
    assert " --device cpu --jobs 2 " in command
    assert command.endswith("--learning-rates 0.0012345678 --seeds 1 --steps 2")
