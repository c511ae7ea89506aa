"""Starting values that the models of a comparison share."""

from __future__ import annotations

import torch


def share_values(
    base: torch.nn.Module, model: torch.nn.Module
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copy every parameter of one name and shape from ``base``; the names of those and the others.

    So the arms of a comparison differ at the start in what their attention adds and in nothing
    else.
    """
    values = dict(base.named_parameters())
    shared, own = [], []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values and values[name].shape == parameter.shape:
                parameter.copy_(values[name])
                shared.append(name)
            else:
                own.append(name)
    return tuple(shared), tuple(own)
