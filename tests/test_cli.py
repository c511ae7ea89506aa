"""The command line: what it prints, and how it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import neural_attention
from neural_attention.cli import main

SOURCES = str(Path(neural_attention.__file__).parent.parent)
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
        (["trane"], "invalid choice"),
        (["train"], "TASK"),
        (["train", "lm"], "ARM"),
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
        (["--data", ""], "the data have an empty name"),
        (["--tokenizer", ""], "the tokeniser has an empty name"),
        (["--out", ""], "the output folder has an empty name"),
        (["--out", " "], "the output folder has an empty name"),
        (["--arms", "dot+feed_forward=4611686018427387904"], "from 1 to 1,048,576"),
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
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("runs", "folder"),
        ("data", "folder"),
        ("result.json", "file"),
        ("curves.png", "file"),
        ("report.html", "file"),
        ("report", "folder"),
    ],
)
def test_what_stands_in_the_way_is_named_before_the_training(capsys, tmp_path, name, kind):
    path = tmp_path / name
    path.write_text("mine") if kind == "folder" else path.mkdir()
    message = refused(capsys, *LM, "--quiet", "--out", str(tmp_path))
    assert message == (
        f"neural-attention: cannot use {path} (a {kind} is needed there): move away what stands "
        "there, or give another folder with --out."
    )
    assert path.exists()


@needs_comparison
def test_a_tilde_in_the_output_folder_is_the_home_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    refused(capsys, *LM, "--quiet", "--out", "~/out", "--data", "absent.txt")
    assert (tmp_path / "out").is_dir()
    assert not (tmp_path / "~").exists()


@needs_comparison
@pytest.mark.skipif(sys.platform != "linux", reason="needs names that are no UTF-8")
def test_an_output_folder_whose_name_is_no_utf_8_is_refused(capsys, tmp_path):
    message = refused(capsys, *LM, "--quiet", "--out", str(tmp_path / "bad\udcff"))
    assert "has a name that is not UTF-8" in message


@needs_comparison
def test_arms_whose_trial_crashes_end_with_one_line(capsys, tmp_path, monkeypatch):
    from neural_attention.compare.processes import JobFailed, Workers

    def crash(self, kind, *_):
        raise JobFailed("RuntimeError: Storage size calculation overflowed", "a long dump")

    monkeypatch.setattr(Workers, "run", crash)
    message = refused(capsys, *LM, "--quiet", "--out", str(tmp_path))
    assert message.endswith(
        "the arms cannot be built: RuntimeError: Storage size calculation overflowed"
    )


@needs_comparison
def test_data_too_short_for_any_tokeniser_are_refused_before_arms_are_built(
    capsys, tmp_path, monkeypatch
):
    from neural_attention.compare.processes import Workers

    monkeypatch.setattr(Workers, "run", lambda *_: pytest.fail("a job was started"))
    (tmp_path / "text.txt").write_text("a few words, too few\n" * 10)
    message = refused(
        capsys, *LM, "--quiet", "--out", str(tmp_path), "--data", str(tmp_path / "text.txt")
    )
    assert "one sequence needs" in message


def test_a_letter_that_the_terminal_lacks_costs_nothing_else():
    code = (
        "import sys; from neural_attention.cli import main; main(['--version']); print('\\udcff文')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.stdout.endswith("\\udcff\\u6587\n")


@needs_comparison
def test_a_folder_at_work_is_not_touched_by_a_second_command(capsys, tmp_path):
    from neural_attention.compare.locking import locked

    with locked(tmp_path / "lock"):
        message = refused(capsys, *LM, "--quiet", "--out", str(tmp_path))
    assert "another comparison" in message
    assert not (tmp_path / "data").exists()


@needs_comparison
@pytest.mark.parametrize("arm", ["neural+layers=7", "dot+kv_heads=3", "hybrid+kv_heads=4"])
def test_an_arm_that_cannot_be_built_is_refused_before_the_text_is_tokenised(capsys, tmp_path, arm):
    message = refused(capsys, *LM, "--quiet", "--out", str(tmp_path), "--arms", "dot", arm)
    assert f"arm '{arm}'" in message
    assert not list(tmp_path.glob("runs/*"))
    assert not (tmp_path / "data").exists()


@needs_comparison
def test_a_comparison_in_which_every_run_diverges_ends_with_1_and_one_line(capsys, tmp_path):
    options = ["--arms", "dot", "--learning-rates", "1e30", "--quiet", "--out", str(tmp_path)]
    assert main([*LM, *options]) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "neural-attention: no arm has a result: every run failed or diverged (lower "
        "--learning-rates?)."
    ]
    assert "this shows nothing" in captured.out


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent as a signal")
def test_ctrl_c_while_torch_is_imported_ends_with_one_line():
    # The import that takes its time is one that says so and waits.
    code = """
import sys, time
import neural_attention_command
class Slow:
    def find_spec(self, name, *_):
        print("importing", name, flush=True)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass  # as a library's C code loses it
sys.meta_path.insert(0, Slow())
sys.exit(neural_attention_command.main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCES},
        # A test run in the background may have inherited that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline().startswith("importing neural_attention")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.split("\n", 1)[1] == "neural-attention: stopped before it began.\n"


@pytest.mark.parametrize("module", ["neural_attention", "neural_attention_command"])
def test_the_command_has_one_name_however_it_is_called(module):
    call = f"import {module}; sys.exit({module}.main())"
    way = ["-m", module] if module == "neural_attention" else ["-c", f"import sys; {call}"]
    done = subprocess.run(
        [sys.executable, *way, "compare"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("neural-attention: ")
    assert done.stderr.rstrip().endswith("See neural-attention compare --help.")


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


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_shell_learns_the_words(capsys, shell):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("compare", "masked-lm", "learning-rates", "report", "doctor"):
        assert word in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_what_was_begun(tmp_path):
    pytest.importorskip("shtab")
    script = tmp_path / "completion.bash"
    command = [sys.executable, "-m", "neural_attention", "completion", "bash"]
    with script.open("w") as file:
        subprocess.run(command, stdout=file, check=True, env=environment())
    program = (
        f"source {script}; COMP_WORDS=(neural-attention compare lm --learn); COMP_CWORD=3; "
        "$(complete -p neural-attention | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--learning-rates"]


def test_a_reader_that_stops_reading_is_no_error(tmp_path):
    pytest.importorskip("shtab")
    command = [sys.executable, "-m", "neural_attention", "completion", "bash"]
    with (
        (tmp_path / "errors").open("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment()
        ) as process,
    ):
        process.stdout.close()
        assert process.wait(60) == 1
        errors.seek(0)
        assert errors.read() == ""


def environment():
    """For a process of its own, which imports what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
