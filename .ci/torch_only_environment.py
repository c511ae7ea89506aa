"""Make a virtual environment that holds pip, torch, what torch requires, and nothing else.

Links the packages of the environment that runs this, instead of downloading gigabytes again.
"""

import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def collect(requirement: Requirement, found: dict[str, Distribution]) -> None:
    """Add to `found` the installed package that `requirement` names, and what that requires."""
    name = canonicalize_name(requirement.name)
    if name in found:
        return
    found[name] = distribution(name)
    for text in found[name].requires or []:
        needed = Requirement(text)
        extras = ("", *requirement.extras)
        if not needed.marker or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
            collect(needed, found)


def main() -> None:
    place = Path(sys.argv[1])
    venv.create(place, symlinks=True)
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    command = [place / "bin/python", "-c", query]
    target = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout[:-1])
    packages: dict[str, Distribution] = {}
    for name in ("pip", "torch"):
        collect(Requirement(name), packages)
    for package in packages.values():
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            link = target / top
            if not link.exists():  # several packages share the folder `nvidia`
                link.symlink_to(Path(str(package.locate_file(top))).resolve())


if __name__ == "__main__":
    main()
