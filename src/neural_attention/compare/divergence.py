"""Where numbers stop being finite in a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn


def unfit_parameter(model: nn.Module) -> str | None:
    """The first parameter, or part of it in this process, with a value that is not finite."""
    for name, parameter in model.named_parameters():
        values = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if not torch.isfinite(values).all():
            return name
    return None


@torch.no_grad()
def unfit_module(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> str | None:
    """The first module that gives a value that is not finite, when the model is run once more.

    Args:
        model: the model.
        inputs: its keyword arguments, on its device.

    Returns:
        Its name, empty for the model itself; None where all values are finite.
    """
    found: list[str] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_hook(_note(found, name)).remove)
        model(**inputs)
    return found[0] if found else None


def _note(found: list[str], name: str) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if not found and not all(torch.isfinite(one).all() for one in _tensors(output)):
            found.append(name)

    return hook


def _tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    values = output.values() if isinstance(output, Mapping) else output
    if isinstance(output, Mapping | tuple | list):
        return [tensor for one in values for tensor in _tensors(one)]
    return []
