"""The files of a comparison: damaged, missing, of another configuration, and made whole again."""

from __future__ import annotations

import json
import math
import shutil

import pytest

pytest.importorskip("transformers")

from neural_attention.compare import compare
from neural_attention.compare.checkpoints import last_complete, mark_complete
from neural_attention.compare.processes import JobFailed, Workers
from neural_attention.compare.store import (
    changed_since,
    form_of_test,
    read_or_set_aside,
    result_form,
    timing_form,
    write_spec,
    write_summary,
)
from neural_attention.tasks.json_files import NUMBER, has_form
from neural_attention.tasks.task import RunSpec

from .small_comparisons import TASK, Said, spec_content

SPEC = RunSpec(**spec_content())
SCORE = {
    "tokens": 9,
    "bytes": 30,
    "loss": 2.5,
    "perplexity": math.exp(2.5),
    "bits_per_byte": 1.1,
}
RESULT = {
    "key": SPEC.key,
    "arm": "odd",
    "learning_rate": 1e-3,
    "seed": 0,
    "diverged": False,
    "divergence": None,
    "steps": 3,
    "units_per_step": 128,
    "validation": SCORE,
    "parameters": 100,
    "speed": None,
    "training_seconds": 1.5,
    "peak_memory_bytes": 1000,
    "dead_heads": {"at_start": {}, "after_training": {"1": [0]}},
    "curve": [{"step": 4, "validation_loss": 3.0, "seconds": 1.5}],
    "training_curve": [{"step": 4, "loss": 3.1}],
    "data_order_sha256": "ab",
    "initial_values": {"shared": 3, "own": ["a"]},
    "resumed_from": None,
    "broken_checkpoints": [],
    "command_started": "2026-12-01T00:00:00+00:00",
}
TIMING = {"key": SPEC.key, "ours": 10.0, "sdpa": 9, "command_started": "then"}


# Forms


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (True, int),
        (float("nan"), NUMBER),
        (float("inf"), NUMBER),
        ("1", NUMBER),
        (None, (int, str)),
        ([1, "a"], [int]),
        ({"a": 1, "b": None}, {str: int}),
        ({"a": 1}, {"a": int, "b": int}),
        ([], {"a": int}),
        ({"a": 1, "b": 2}, {"a": int}),
        (10**400, NUMBER),
        (-(10**400), int),
        (3, lambda value: value > 3),
        (1, "1"),
        (1, True),
    ],
)
def test_a_value_of_another_form_is_told_from_one_that_fits(value, form):
    assert not has_form(value, form)


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (RESULT, result_form(SPEC, TASK)),
        ({"score": SCORE, "key": SPEC.key}, form_of_test(SPEC, TASK)),
        (TIMING, timing_form(SPEC)),
    ],
    ids=["result", "score", "timing"],
)
def test_every_field_that_is_read_back_is_checked(tmp_path, content, form):
    path = tmp_path / "file.json"

    def read(changed):
        path.write_text(json.dumps(changed))
        return read_or_set_aside(path, form)

    assert read(content) == (content, None)
    for name in content:
        wrong = [{k: v for k, v in content.items() if k != name}, {**content, name: {"x": []}}]
        wrong += [{**content, "more": float("nan")}, {**content, name: 10**400}]
        if isinstance(content[name], dict):
            wrong.append({**content, name: {}})
        for changed in wrong:
            found, note = read(changed)
            assert found is None, name
            assert "damaged" in note
            assert not path.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"validation": {**SCORE, "loss": 1e4}},
        {"validation": {**SCORE, "loss": 2.4}},
        {"validation": {**SCORE, "loss": -1e4, "perplexity": 0.0}},
        {"validation": {**SCORE, "more": 1}},
        {"peak_memory_bytes": 1e300},
        {"speed": -1.0},
        {"curve": [{"step": 10**400, "validation_loss": 3.0, "seconds": 1.5}]},
        {"curve": [{"step": 4, "validation_loss": 3.0, "seconds": 1.5, "more": float("nan")}]},
        {"dead_heads": {"at_start": {}, "after_training": {}, "more": 3}},
    ],
)
def test_numbers_that_cannot_be_are_damage(tmp_path, changes):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**RESULT, **changes}))
    found, note = read_or_set_aside(path, result_form(SPEC, TASK))
    assert found is None
    assert "damaged" in note


@pytest.mark.parametrize("loss", [1e4, -3.0, 2.4])
def test_a_test_score_whose_numbers_disagree_is_damage(loss):
    form = form_of_test(SPEC, TASK)
    assert has_form({"score": SCORE, "key": SPEC.key}, form)
    assert not has_form({"score": {**SCORE, "loss": loss}, "key": SPEC.key}, form)


def test_a_folder_where_a_file_must_be_is_set_aside(tmp_path):
    for _ in range(2):
        (tmp_path / "test.json").mkdir()
        found, note = read_or_set_aside(tmp_path / "test.json", form_of_test(SPEC, TASK))
        assert found is None
        assert "set aside" in note
        assert not (tmp_path / "test.json").exists()


def test_a_run_without_a_validation_score_must_have_diverged():
    assert has_form({**RESULT, "validation": None, "diverged": True}, result_form(SPEC, TASK))
    assert not has_form({**RESULT, "validation": None}, result_form(SPEC, TASK))


@pytest.mark.parametrize("content", [b"", b'{"key": "a", "valid', b"\xff\x00", b"[" * 99_999, b"3"])
def test_a_damaged_result_is_set_aside_and_said(tmp_path, content):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    found, note = read_or_set_aside(path, result_form(SPEC, TASK))
    assert found is None
    assert "set aside" in note
    assert (tmp_path / "result.json.unreadable").read_bytes() == content


def test_what_was_set_aside_is_never_replaced(tmp_path):
    for content in ("first", "second", "first"):
        (tmp_path / "result.json").write_text(content)
        read_or_set_aside(tmp_path / "result.json", result_form(SPEC, TASK))
    aside = sorted(path.read_text() for path in tmp_path.iterdir())
    assert aside == ["first", "second"]


# Checkpoints


def test_a_checkpoint_that_was_cut_off_or_changed_is_passed_over(tmp_path):
    for step in (10, 20, 30, 40, 50):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes(100))
        if step < 30:
            mark_complete(folder)
    (tmp_path / "checkpoint-20" / "model.safetensors").write_bytes(bytes(50))
    (tmp_path / "checkpoint-40" / "complete.json").write_text("{}")
    (tmp_path / "checkpoint-50" / "complete.json").write_text('["model.safetensors"]')
    found, broken = last_complete(tmp_path)
    assert found == tmp_path / "checkpoint-10"
    assert broken == [f"checkpoint-{step}" for step in (50, 40, 30, 20)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10"]


# The summary


def summary_of(key, rate=1e-3, **tests):
    arms = {
        name: {"results": [{"seed": 0, "learning_rate": rate, "test": SCORE if has_test else None}]}
        for name, has_test in tests.items()
    }
    return {"key": key * 64, "arms": arms}


def kept_beside(folder):
    return {path.name for path in folder.glob("result-*")}


def test_the_summary_of_another_configuration_is_kept(tmp_path):
    assert write_summary(tmp_path, summary_of("a", dot=True)) is None
    assert write_summary(tmp_path, summary_of("a", dot=True)) is None
    (tmp_path / "curves.png").write_bytes(b"a picture")
    note = write_summary(tmp_path, summary_of("b", dot=True))
    assert note == (
        "the result of another configuration is there: it is kept as result-aaaaaaaa.json"
    )
    assert json.loads((tmp_path / "result-aaaaaaaa.json").read_text())["key"] == "a" * 64
    assert json.loads((tmp_path / "result.json").read_text())["key"] == "b" * 64
    assert (tmp_path / "curves-aaaaaaaa.png").is_file()


@pytest.mark.parametrize(
    "content", ['{"key": "a', "{}", '{"key": 3, "arms": {}}', '{"key": "a/b", "arms": {}}', "[]"]
)
def test_a_damaged_summary_is_called_damaged_and_kept_under_a_whole_name(tmp_path, content):
    (tmp_path / "result.json").write_text(content)
    note = write_summary(tmp_path, summary_of("a", dot=True))
    assert "damaged" in note
    assert "configuration" not in note
    assert (tmp_path / "result-damaged.json").read_text() == content


def test_a_summary_with_more_test_scores_is_not_replaced(tmp_path):
    write_summary(tmp_path, summary_of("a", dot=True, neural=True))
    note = write_summary(tmp_path, summary_of("a", dot=True, neural=False))
    assert "test scores that this one lacks" in note
    kept = json.loads((tmp_path / "result-aaaaaaaa.json").read_text())
    assert kept["arms"]["neural"]["results"][0]["test"] == SCORE
    # Nor is the kept one by a third, poorer than the second.
    note = write_summary(tmp_path, summary_of("a", dot=False, neural=False))
    assert "result-aaaaaaaa-2.json" in note
    assert json.loads((tmp_path / "result-aaaaaaaa.json").read_text()) == kept
    assert write_summary(tmp_path, summary_of("a", dot=True, neural=True)) is None


def test_a_summary_at_a_better_rate_is_kept_where_that_rate_fails_later(tmp_path):
    write_summary(tmp_path, summary_of("a", rate=1e-3, dot=True))
    note = write_summary(tmp_path, summary_of("a", rate=1e-2, dot=True))
    assert "test scores that this one lacks" in note
    kept = json.loads((tmp_path / "result-aaaaaaaa.json").read_text())
    assert kept == summary_of("a", rate=1e-3, dot=True)


# What has changed


def finished(root, **changes):
    spec = RunSpec(**spec_content(**changes))
    write_spec(spec.folder(root), spec)
    (spec.folder(root) / "result.json").write_text("{}")
    return spec


def test_it_is_said_which_part_of_the_key_has_changed(tmp_path):
    environment = {"threads": 2, "torch": "2.14"}
    finished(tmp_path, environment=environment, training={"steps": 3})
    finished(tmp_path, environment=environment, training={"steps": 5})
    again = RunSpec(
        **spec_content(environment={**environment, "threads": 1}, training={"steps": 5})
    )
    assert changed_since(tmp_path, again) == "threads was 2 and is 1"
    other_data = RunSpec(
        **spec_content(
            environment=environment, training={"steps": 5}, data={"sha256": "x", "counts": {}}
        )
    )
    assert changed_since(tmp_path, other_data) == "the data are others"


def test_nothing_has_changed_where_there_is_no_such_run(tmp_path):
    assert changed_since(tmp_path / "absent", SPEC) is None
    finished(tmp_path, seed=1)
    finished(tmp_path)
    assert changed_since(tmp_path, SPEC) is None


# Whole comparisons


ARGUMENTS = {"preset": "smoke", "learning_rates": [1e-3, 1e-2], "device": "cpu"}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "out"
    return compare("lm", ["dot"], out=folder, **ARGUMENTS), folder


@pytest.fixture
def copied(original, tmp_path):
    """A finished comparison that a test may spoil: its summary, its folder, its chosen run."""
    summary, folder = original
    shutil.copytree(folder, tmp_path / "out")
    rate = summary["arms"]["dot"]["learning_rate"]
    (run,) = (tmp_path / "out" / "runs").glob(f"dot_lr{rate:g}_*")
    return summary, tmp_path / "out", run


def again(folder, **changes):
    said = Said()
    arguments = {**ARGUMENTS, **changes}
    summary = compare("lm", ["dot"], out=folder, progress=said, **arguments)
    return summary, said.lines


def test_a_rate_that_was_not_chosen_is_trained_again_when_it_is(copied):
    summary, folder, _ = copied
    other = next(
        rate
        for rate in ARGUMENTS["learning_rates"]
        if rate != summary["arms"]["dot"]["learning_rate"]
    )
    found, _ = again(folder, learning_rates=[other])
    assert found["failures"] == []
    assert found["arms"]["dot"]["learning_rate"] == other
    assert found["arms"]["dot"]["test"]["perplexity"] > 1


def cut_weights(run):
    path = run / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def change_weights(run):
    path = run / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "score"),
    [
        (cut_weights, None),
        (change_weights, '{"key": 1}'),
        (lambda run: shutil.rmtree(run / "model"), None),
    ],
    ids=["cut", "changed", "gone"],
)
def test_a_run_without_weights_and_score_is_trained_again(copied, spoil, score):
    summary, folder, run = copied
    spoil(run)
    (run / "test.json").unlink()
    if score is not None:
        (run / "test.json").write_text(score)
    found, said = again(folder)
    assert any("no whole weights" in line for line in said)
    assert found["failures"] == []
    assert (
        found["arms"]["dot"]["test"]["perplexity"] == summary["arms"]["dot"]["test"]["perplexity"]
    )
    assert not kept_beside(folder)


def test_weights_are_not_needed_once_the_run_is_tested(copied):
    summary, folder, run = copied
    shutil.rmtree(run / "model")
    before = (run / "result.json").stat().st_mtime_ns
    found, _ = again(folder)
    assert (run / "result.json").stat().st_mtime_ns == before
    assert found["arms"] == json.loads(json.dumps(summary["arms"]))


def test_a_redoing_that_fails_leaves_what_was_there(copied, monkeypatch):
    summary, folder, run = copied
    shutil.rmtree(run / "model")
    (run / "test.json").unlink()
    before = (run / "result.json").read_bytes()
    run_job = Workers.run

    def fail(self, kind, *arguments):
        if kind == "train":
            raise JobFailed("no space left on device")
        return run_job(self, kind, *arguments)

    monkeypatch.setattr(Workers, "run", fail)
    found, said = again(folder)
    assert found["failures"]
    assert (run / "result.json").read_bytes() == before
    assert any("test scores that this one lacks" in line for line in said)
    (kept,) = kept_beside(folder)
    assert json.loads((folder / kept).read_text()) == json.loads(json.dumps(summary))


@pytest.mark.parametrize(
    ("name", "field"),
    [("result.json", "validation"), ("result.json", "dead_heads"), ("timing.json", "sdpa")],
)
def test_a_file_with_the_right_key_and_a_wrong_field_is_made_again(copied, name, field):
    summary, folder, run = copied
    (path,) = [p for p in folder.glob(f"runs/*/{name}") if p.parent == run or name[0] == "t"]
    path.write_text(json.dumps({**json.loads(path.read_text()), field: "?"}))
    found, said = again(folder)
    assert any(f"{name} is damaged" in line for line in said)
    assert path.with_name(name + ".unreadable").is_file()
    for part in ("validation", "test"):
        assert found["arms"]["dot"][part] == summary["arms"]["dot"][part]
    assert found["arms"]["dot"]["sdpa_speed"] > 0


def test_a_picture_that_cannot_be_drawn_costs_neither_summary_nor_table(copied, monkeypatch):
    summary, folder, _ = copied
    from neural_attention.compare import comparison

    def fail(*_):
        raise UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed")

    monkeypatch.setattr(comparison, "draw_curves", fail)
    (folder / "result.json").unlink()
    found, said = again(folder)
    assert any("curves.png could not be drawn: 'utf-8' codec" in line for line in said)
    assert (folder / "result.json").is_file()
    assert found["arms"] == json.loads(json.dumps(summary["arms"]))


def test_damaged_tokens_are_made_again_and_fit_the_runs_there_are(copied):
    summary, folder, _ = copied
    (path,) = folder.glob("data/*/tokens.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "counts": 3}))
    found, _ = again(folder)
    assert found["key"] == summary["key"]


def test_a_run_that_is_trained_anew_says_why_once(copied, monkeypatch):
    _, folder, _ = copied
    from neural_attention.compare import execution

    there = execution.thread_count()
    monkeypatch.setattr(execution, "thread_count", lambda: there + 1)
    _, said = again(folder)
    told = [line for line in said if "trained again, since" in line]
    assert len(told) == 1
    assert told[0].endswith(
        f"since threads was {there} and is {there + 1} (the earlier run is kept)"
    )
