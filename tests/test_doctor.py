"""What `neural-attention doctor` tells of this machine, and of machines that lack something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from neural_attention import doctor
from neural_attention.backends import NAMES, native, unavailable_reason
from neural_attention.cli import main


def doctor_after(code: str, **variables: str) -> str:
    """What the command prints in a process of its own that ran ``code`` first."""
    program = (
        f"import sys\n{code}\nfrom neural_attention.cli import main\nsys.exit(main(['doctor']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | variables | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_report_names_every_backend_and_fits_80_columns(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in NAMES:
        *_, line = (line for line in lines if line.split()[:1] == [name])  # versions come before
        assert ("runs here" in line) == (unavailable_reason(name) is None)
    for line in lines:
        assert len(line) <= doctor.WIDTH or "/" in line, line  # a path is not broken


def test_json_holds_what_the_report_says(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backends"] == {name: unavailable_reason(name) for name in NAMES}
    assert torch.__version__.startswith(found["versions"]["torch"])
    assert found["threads"]["torch"] == torch.get_num_threads()
    assert found["advice"] == doctor.diagnose()["advice"]


def test_without_kernels_it_says_how_to_build_them():
    code = "from neural_attention.backends import native; native._LIBRARIES.clear()"
    told = flat(doctor_after(code))
    assert "native the kernels are not built" in told
    assert "auto blocked on the CPU" in told
    assert "pip install --force-reinstall --no-deps --verbose ." in told


def test_without_a_compiler_it_says_where_to_get_one(tmp_path):
    code = "from neural_attention.backends import native; native._LIBRARIES.clear()"
    told = flat(doctor_after(code, PATH=str(tmp_path), CXX=""))
    assert "compiler none found" in told
    assert "apt-get install g++" in told


@pytest.mark.skipif(native._open()[0] is None, reason="no kernels")
def test_an_instruction_set_that_cannot_be_forced_is_explained():
    told = flat(doctor_after("", NEURAL_ATTENTION_ISA="mmx"))
    assert "in use none (NEURAL_ATTENTION_ISA=mmx)" in told
    assert "Unset NEURAL_ATTENTION_ISA" in told
    assert "portable" in told


@pytest.mark.skipif(native.unavailable_reason() is not None, reason="no kernels")
def test_looking_at_instruction_sets_leaves_the_one_in_use():
    code = (
        "import torch\n"
        "from neural_attention.backends import native\n"
        "from neural_attention.testing import operator_inputs\n"
        "inputs = operator_inputs(queries=200, activation='silu', requires_grad=False)\n"
        "before = inputs.run('native')[0]\n"
        "assert 'portable' in native.instruction_sets()\n"
        "assert torch.equal(inputs.run('native')[0], before)"
    )
    assert f"in use {native.instruction_set()}" in flat(doctor_after(code))


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, capsys):
    def version(name: str) -> str:
        if name == "transformers":
            raise PackageNotFoundError(name)
        return "999"

    monkeypatch.setattr(doctor, "version", version)
    found = doctor.diagnose()
    assert found["versions"]["transformers"] is None
    assert any(name.startswith("transformers") for name in found["extras"]["compare"]["missing"])
    # However long the names of the others are, a command is not cut.
    found["extras"]["translation"] = found["extras"]["compare"]
    doctor.print_report(found, sys.stdout)
    assert 'pip install "neural-attention[compare]"' in capsys.readouterr().out


def test_a_package_imported_without_being_installed_is_no_error(monkeypatch):
    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", absent)
    assert doctor.diagnose()["extras"] == {}


@pytest.mark.parametrize(
    ("installed", "wanted", "enough"),
    [
        ("5.24.0", ">=5.0,<6", True),
        ("4.57.1", "<6,>=5.0", False),
        ("6.0.0", ">=5.0,<6", False),
        ("2.7.1+cpu", ">=2.7", True),
        ("1.9", ">=1.10", False),
        (None, "", False),
    ],
)
def test_versions_outside_their_bounds_count_as_missing(installed, wanted, enough):
    assert doctor._satisfies(installed, wanted) == enough


def test_two_openmp_runtimes_and_too_many_threads_are_warned_of(monkeypatch):
    monkeypatch.setattr(doctor, "_openmp_runtimes", lambda: ["/a/libgomp.so.1", "/b/libiomp5.so"])
    monkeypatch.setattr(doctor, "_usable_cores", lambda: 0.5)
    advice = " ".join(doctor.diagnose()["advice"])
    assert "More than one OpenMP runtime" in advice
    assert "OMP_NUM_THREADS=1" in advice


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not tell")
def test_the_kernels_use_the_openmp_runtime_that_torch_brought():
    # In a process of its own: other packages that tests import bring theirs.
    code = "import sys; from neural_attention.cli import main; sys.exit(main(['doctor', '--json']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["threads"]["openmp_runtimes"]) <= 1
