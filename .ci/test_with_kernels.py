"""Run pytest on a build of the kernels that is not the installed one.

python .ci/test_with_kernels.py kernels.so [arguments of pytest]
"""

import sys
from pathlib import Path

import pytest

from neural_attention.backends import native

native._LIBRARIES[:] = [Path(sys.argv[1]).resolve()]
if reason := native.unavailable_reason():
    sys.exit(reason)
print(f"{native._LIBRARIES[0]}: {native.instruction_set()}")
sys.exit(pytest.main(sys.argv[2:]))
