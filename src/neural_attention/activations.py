"""The activations a score network may use, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

Activation = Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": F.tanh,
}

NAMES = tuple(_ACTIVATIONS)

_LARGEST = torch.finfo(torch.float32).max


def resolve(name: str) -> Activation:
    """The function an activation's name stands for.

    Names are those of :mod:`torch.nn.functional`; ``gelu`` is the exact form, ``gelu_tanh`` its
    tanh approximation. ``leaky_relu`` has torch's negative slope, 0.01; another slope follows a
    colon, as in ``leaky_relu:0.2``.

    Raises:
        ValueError: the name is unknown or its slope is not a finite number.
        TypeError: it is not a name.

    >>> import torch
    >>> resolve("leaky_relu:0.5")(torch.tensor([-2.0, 3.0]))
    tensor([-1.,  3.])
    """
    if not isinstance(name, str):
        raise TypeError(f"activation is {name!r}: expected a name, one of {', '.join(NAMES)}.")
    function = _ACTIVATIONS.get(name)
    if function is not None:
        return function
    kind, colon, slope = name.partition(":")
    if kind == "leaky_relu" and colon:
        try:
            negative_slope = float(slope)
        except ValueError:
            negative_slope = math.nan
        if abs(negative_slope) <= _LARGEST:
            return partial(F.leaky_relu, negative_slope=negative_slope)
    raise ValueError(
        f"activation is {name!r}: expected one of {', '.join(NAMES)}, or leaky_relu:SLOPE with a "
        "finite number, such as leaky_relu:0.2."
    )
