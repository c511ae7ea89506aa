"""Peak memory of a process, above what it held before the work began."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class PeakMemory:
    """The most memory held since the meter was made, above the level at that moment.

    On CUDA: ``torch.cuda.max_memory_allocated`` above what was allocated. Elsewhere: peak resident
    size above the resident size; make the meter in a process of its own, since the operating
    system keeps one peak for a process.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.level = torch.cuda.memory_allocated(device)
        else:
            if _CLEAR.exists():
                # 5 resets the peak to the present size (man 5 proc).
                with contextlib.suppress(OSError):
                    _CLEAR.write_text("5")
            self.level = _resident_bytes()

    def peak(self) -> int:
        """Bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) - self.level
        return max(0, _peak_resident_bytes() - self.level)


def _from_status(field: str) -> int | None:
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _resident_bytes() -> int:
    resident = _from_status("VmRSS")
    return _peak_resident_bytes() if resident is None else resident


def _peak_resident_bytes() -> int:
    peak = _from_status("VmHWM")
    if peak is not None:
        return peak
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    # Kilobytes on Linux and the BSDs, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
