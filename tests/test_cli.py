"""The command line: what it prints, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import neural_attention
from neural_attention.cli import main

LM = ["compare", "lm", "--preset", "smoke", "--device", "cpu"]


def refused(capsys, *arguments: str) -> str:
    """The one message of a command that must end with 2."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("neural-attention: ")]
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.err
    return lines[0]


def test_the_bare_command_says_what_to_do_first(capsys):
    assert main([]) == 0
    assert "neural-attention compare lm" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"neural-attention {neural_attention.__version__}"


def test_help_names_every_option(capsys):
    assert main(["compare", "lm", "--help"]) == 0
    text = capsys.readouterr().out
    options = "arms preset data tokenizer out seeds steps learning-rates device model control json"
    for option in options.split():
        assert f"--{option}" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare"], "required"),
        (["compare", "vision"], "invalid choice"),
        (["train"], "invalid choice"),
        ([*LM, "--seeds", "many"], "invalid int"),
        ([*LM, "--speed"], "unrecognized"),
    ],
)
def test_a_mistyped_command_is_refused_in_one_line(capsys, arguments, says):
    assert says in refused(capsys, *arguments)


needs_comparison = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs the comparison's packages"
)


@needs_comparison
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--preset", "fast"], "unknown preset 'fast'"),
        (["--arms", "dto"], "did you mean dot"),
        (["--arms", "dot", "dot"], "are the same"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--model", "new"], "unknown model 'new'"),
        (["--data", "absent.txt"], "no file or folder"),
        (["--data", "nobody-here/no-such-set"], "the Hugging Face hub"),
        (["--seeds", "0"], "seeds is 0"),
        (["--learning-rates", "0"], "positive numbers"),
    ],
)
def test_mistakes_of_the_user_end_with_one_message(capsys, tmp_path, options, says):
    assert says in refused(capsys, *LM, "--quiet", "--out", str(tmp_path / "out"), *options)


@needs_comparison
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a few words, too few\n", "one sequence needs"),
    ],
)
def test_data_that_cannot_be_used_ends_with_one_message(capsys, tmp_path, content, says):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    out = str(tmp_path / "out")
    assert says in refused(capsys, *LM, "--quiet", "--data", str(path), "--out", out)


@needs_comparison
def test_an_output_folder_that_cannot_be_written_is_refused(capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert "cannot write" in refused(capsys, *LM, "--quiet", "--out", str(file / "out"))


@needs_comparison
def test_a_folder_at_work_is_not_touched_by_a_second_command(capsys, tmp_path):
    from neural_attention.compare.locking import locked

    with locked(tmp_path / "lock"):
        message = refused(capsys, *LM, "--quiet", "--out", str(tmp_path))
    assert "another comparison" in message


@needs_comparison
def test_an_arm_that_cannot_be_built_is_refused_before_anything_is_trained(capsys, tmp_path):
    message = refused(
        capsys, *LM, "--quiet", "--out", str(tmp_path), "--arms", "dot", "neural+layers=7"
    )
    assert "neural+layers=7" in message
    assert not list(tmp_path.glob("runs/*"))


def test_a_missing_package_is_named_with_what_brings_it(tmp_path):
    code = (
        "import sys\n"
        "sys.modules['tokenizers'] = None\n"
        "from neural_attention.cli import main\n"
        f"sys.exit(main({[*LM, '--quiet', '--out', str(tmp_path)]!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert 'pip install "neural-attention[compare]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_line_starts_without_the_comparisons_packages():
    code = (
        "import sys\n"
        "for name in ('transformers', 'tokenizers', 'datasets', 'rich', 'matplotlib', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "from neural_attention.cli import main\n"
        "sys.exit(main([]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_comparison
def test_the_smoke_comparison_ends_with_a_table_of_80_columns_and_a_sentence(tmp_path):
    out = str(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-m", "neural_attention.cli", *LM, "--out", out],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(len(line.rstrip()) for line in lines[:-1]) <= 80
    for arm in ("dot", "dot+alibi", "neural", "  on torch's sdpa"):
        assert any(line.startswith(arm) for line in lines)
    assert "With one seed" in done.stdout
    noise = [
        line
        for line in done.stderr.splitlines()
        if not line.startswith(("data: ", "tokens: ", "dot", "neural"))
    ]
    assert noise == []

    told = subprocess.run(
        [sys.executable, "-m", "neural_attention.cli", *LM, "--out", out, "--quiet", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert told.stderr == ""
    assert set(json.loads(told.stdout)["arms"]) == {"dot", "dot+alibi", "neural"}
