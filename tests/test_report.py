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
    assert result["command"].startswith("neural-attention compare lm --preset smoke --arms dot ")
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
    assert main([*words, "--device", "cpu", "--quiet", "--out", str(tmp_path)]) == 0
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


def test_arms_are_told_apart_by_more_than_colour():
    looks = [style(index) for index in range(4 * len(COLOURS))]
    assert len({(look["light"], look["dash"]) for look in looks}) == len(looks)
    assert len({look["marker"] for look in looks[: len(COLOURS)]}) == len(COLOURS)
    assert {look["dash"] for look in looks[:4]} == set(DASHES)


# Several comparisons


def test_several_comparisons_stand_in_one_page_and_say_in_what_they_differ(folder, tmp_path):
    one = read_result(folder)
    same = json.loads(json.dumps(one))
    assert differences([one, same]) == []
    other = {**one, "data": {**one["data"], "sha256": "ff"}}
    assert differences([one, other]) == ["the data"]
    page = page_of({"first": one, "second": other}, [], "")
    assert "These comparisons differ in the data" in page
    assert page.count('<section class="run"') == 2
    assert "may be read side by side" in page_of({"first": one, "second": same}, [], "")
    again, left_out = write_report([folder, tmp_path], tmp_path / "page.html")
    assert again.is_file()
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
        (folder / "spec.json").write_text("{}")
    if kind == "cut off":
        (folder / "result.json").write_text('{"format": 3, "arms": {')
    if kind in ("newer", "earlier"):
        number = FORMAT + (1 if kind == "newer" else -1)
        (folder / "result.json").write_text(json.dumps({"format": number}))
    if kind == "lacking":
        result = result_of({"dot": [3.0]}, folder)
        del result["arms"]["dot"]["curves"]
        (folder / "result.json").write_text(json.dumps(result))
    if kind == "reference":
        result = result_of({"dot": [3.0]}, folder)
        (folder / "result.json").write_text(json.dumps({**result, "reference": "gone"}))
    return folder


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing", "there is no folder"),
        ("empty", "has no result.json: it is empty"),
        ("other", "no comparison has written to it"),
        ("half", "its comparison has not ended (1 of 3 runs done"),
        ("run", "it is the folder of a single run"),
        ("cut off", "is damaged: it is no result of a comparison"),
        ("newer", "of a newer neural-attention"),
        ("earlier", "of an earlier neural-attention"),
        ("lacking", "a part of it is missing"),
        ("reference", "a part of it is missing"),
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
    compare("lm", ["dot"], preset="smoke", out=tmp_path, device="cpu", steps=2)
    assert read_result(tmp_path)["command"].endswith("--seeds 1 --steps 2")
