"""Which device a comparison runs on."""

from __future__ import annotations

import re

from neural_attention.tasks.wording import counted


def resolve_device(name: str) -> str:
    """The device a name stands for, after trying that it is there.

    Args:
        name: ``"auto"`` (CUDA, else Apple's GPU, else CPU), ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or
            ``"mps"``.

    Raises:
        ValueError: an unknown name, or a device that this machine or this torch does not have.

    >>> resolve_device("cpu")
    'cpu'
    """
    import torch

    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return "cuda" if has_cuda else "mps" if has_mps else "cpu"
    if name == "cpu":
        return name
    if name == "mps":
        if not has_mps:
            raise ValueError("device 'mps' is not available here (it is Apple's GPU).")
        return name
    if re.fullmatch(r"cuda(:\d+)?", name):
        if not has_cuda:
            raise ValueError(f"device {name!r}: torch finds no CUDA GPU here. Use cpu or auto.")
        index, count = int(name.partition(":")[2] or 0), torch.cuda.device_count()
        if index >= count:
            raise ValueError(f"device {name!r}: {counted(count, 'GPU')} here, numbered from 0.")
        return name
    raise ValueError(f"unknown device {name!r}; known are auto, cpu, cuda, cuda:N and mps.")


def thread_count() -> int:
    """Threads that torch uses for one operation on the CPU."""
    import torch

    return torch.get_num_threads()
