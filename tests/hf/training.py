"""A converted model, one batch, and a plain training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .families import FAMILIES

STEPS = 3


def build(name: str, changes: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """A converted model, the same each time."""
    options = {"score": "hybrid", "positions": "slopes", "score_network": {"width": 6}, **options}
    return FAMILIES[name].converted(changes, **options)


def batch(name: str) -> dict[str, Tensor]:
    """Four rows with labels."""
    family = FAMILIES[name]
    inputs = family.inputs(batch=4)
    if family.kind == "image":
        return {**inputs, "labels": torch.arange(4)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][0, -2:] = 0
    if family.kind == "translation":
        inputs["labels"] = inputs["decoder_input_ids"].roll(-1, 1)
    else:
        inputs["labels"] = inputs["input_ids"].clone()
        if family.kind == "decoder":
            # The first is predicted by nobody; early versions of the Trainer count it even so.
            inputs["labels"][:, 0] = -100
    return inputs


def train(
    model: Any,
    inputs: Mapping[str, Tensor],
    optimizer: Any = None,
    backward: Callable[[Tensor], None] = torch.Tensor.backward,
    lr: float = 0.1,
    autocast: bool = False,
) -> Tensor:
    """The losses of a few steps of plain gradient descent."""
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer or torch.optim.SGD(trained, lr=lr)
    losses = []
    for _ in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(**inputs).loss
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return torch.tensor(losses)
