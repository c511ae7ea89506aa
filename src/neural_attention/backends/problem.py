"""One attention call as every backend receives it: checked, with nothing left to decide."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..masks import Masks

DIFFERENTIABLE = (
    "a",
    "b",
    "v",
    "output_weight",
    "hidden_weight",
    "hidden_bias",
    "q",
    "k",
    "slopes",
    "alibi",
    "attn_mask",
)

# Beyond this size a masked entry could overflow inside the score network and reach the others as
# 0 · inf. Below it, x³ (in gelu's tanh form) and products over 256 channels stay finite in float32.
_LARGE = 1e10


@dataclass(slots=True)
class Problem:
    """The tensors, masks and constants of one call; shapes as in ``neural_attention``."""

    a: Tensor
    b: Tensor
    v: Tensor
    output_weight: Tensor
    hidden_weight: Tensor | None
    hidden_bias: Tensor | None
    q: Tensor | None
    k: Tensor | None
    slopes: Tensor | None
    alibi: Tensor | None
    masks: Masks
    seed: Tensor | None
    activation: str
    scale: float
    dropout_p: float

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """``(B, H, Hkv, Lq, Lk)``."""
        batch, heads, query_length, _ = self.a.shape
        return batch, heads, self.b.shape[1], query_length, self.b.shape[2]

    @property
    def accumulate_dtype(self) -> torch.dtype:
        """float64 for float64 inputs, else float32."""
        return torch.float64 if self.v.dtype == torch.float64 else torch.float32

    @property
    def attn_mask(self) -> Tensor | None:
        """The explicit mask, in the shape it was given."""
        return self.masks.attn_mask

    @property
    def needs_strict_masking(self) -> bool:
        """Whether a masked entry may hold a value that multiplying by zero would not stop.

        One pass over the inputs. Where nothing is extreme, plain matrix products are exact about
        masks; where something is, masked entries have to be replaced one by one.
        """
        for tensor in (self.a, self.b, self.v, self.q, self.k):
            if tensor is not None and tensor.numel():
                low, high = torch.aminmax(tensor.detach())
                # Written so that NaN counts as extreme.
                if not (bool(low > -_LARGE) and bool(high < _LARGE)):
                    return True
        return False

    def with_tensors(self, **tensors: Tensor | None) -> Problem:
        """The same problem with some tensors replaced."""
        if "attn_mask" in tensors:
            masks = replace(self.masks, attn_mask=tensors.pop("attn_mask"))
            return replace(self, masks=masks, **tensors)  # type: ignore[arg-type]
        return replace(self, **tensors)  # type: ignore[arg-type]


def log_sum_exp(peak: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """``peak + log(total)``, and what rounding has taken off it.

    Weights are exp((score − lse) − rest). Beside a large peak, such as the most negative number in
    an additive mask, the logarithm is lost in lse, and without the rest weights would not sum to 1.
    """
    log_total = torch.log(total)
    lse = peak + log_total
    rest = torch.where(lse.isinf(), 0, (peak - lse) + log_total)
    return lse, rest


def records_gradients() -> AbstractContextManager[None]:
    """A context in which autograd records, wherever the operator is called from.

    Under a ``TorchDispatchMode``, such as the one that counts floating-point operations, operators
    run below autograd, and there ``torch.enable_grad`` alone records nothing.
    """
    return torch.inference_mode(False)
