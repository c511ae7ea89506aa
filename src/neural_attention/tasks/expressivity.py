"""What a score can express: attention distributions P*, and how near each kind of score comes.

A dot product of width d matches P* only if log P*, up to a number for each row, is a matrix of
rank at most d. Nothing is generalised here: items, targets and features are fixed, and each score
is fitted to the whole matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

SHARPNESS = 6.0
"""How far log P* lies apart between keys that are attended to and others."""

HIDDEN = 16
"""Width of an mlp projection's hidden layer."""

EMBEDDING = 16
"""Width of a learned embedding."""


@dataclass(frozen=True)
class Target:
    """Attention distributions over the same items.

    Attributes:
        about: what is attended to, in words.
        is_control: whether a narrow dot product suffices.
        log_p: log P* up to a number for each row, (n, n), float64.
        features: what is known of an item, (n, F).
    """

    about: str
    is_control: bool
    log_p: Tensor
    features: Tensor

    @property
    def rank(self) -> int:
        """Rank of log P* after the best shift of each row, which takes away the mean of the row.

        Shifting rows adds r 1ᵀ. The rank is least where the ones are projected out: for every r,
        rank(L + r 1ᵀ) ≥ rank(L (I − 1 1ᵀ/n)), and the row means reach it.
        """
        centred = self.log_p - self.log_p.mean(1, keepdim=True)
        return int(torch.linalg.matrix_rank(centred, rtol=1e-9))


def targets(n: int) -> dict[str, Target]:
    """The targets by name, over ``n`` items (a power of two, at least 8), in float64.

    Raises:
        ValueError: ``n`` is no such number.
    """
    if n < 8 or n & (n - 1):
        raise ValueError(f"{n} items: a power of two of at least 8 is needed.")
    place = torch.arange(n, dtype=torch.float64)
    x = place / n - 0.5
    ahead = place[None, :] - place[:, None]  # j − i
    bits = (place.long()[:, None] >> torch.arange(n.bit_length() - 1)) & 1
    odd = ((bits[:, None] + bits).sum(-1) % 2).double()
    kinds = n // 4
    symbol = place.long() % kinds
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(n, 8, generator=generator, dtype=torch.float64)
    bilinear = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    other = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    scalar = 12**0.5 * x[:, None]  # a variance of about 1
    return {
        "order": Target("greater items", False, SHARPNESS * (ahead > 0).double(), scalar),
        "nearest": Target(
            "near items, by distance", False, -4 * SHARPNESS / n * ahead.abs(), scalar
        ),
        "window": Target(
            "the 2nd to 5th item ahead",
            False,
            SHARPNESS * ((ahead >= 2) & (ahead <= 5)).double(),
            scalar,
        ),
        "max": Target(
            "where the greater of both is great",
            False,
            2 * SHARPNESS * torch.maximum(x[:, None], x),
            scalar,
        ),
        "parity": Target(
            "items that differ in an odd number of bits",
            False,
            SHARPNESS * odd,
            bits.double() - 0.5,
        ),
        "equality": Target(
            "items of the same symbol",
            True,
            SHARPNESS * (symbol[:, None] == symbol).double(),
            torch.nn.functional.one_hot(symbol, kinds).double(),
        ),
        "bilinear": Target(
            "a random bilinear form of rank 4",
            True,
            vectors @ bilinear @ other @ vectors.T / 4,
            vectors,
        ),
    }


SCORES = ("dot", "neural", "hybrid")
FEATURES = ("raw", "mlp", "embedding")
"""Of an item: a linear map of its features; a network of them; a table that is learned."""


@dataclass(frozen=True)
class Fit:
    """Fits of one score to one target.

    Attributes:
        kl: KL(P* ‖ P), the mean over rows in nats, one for each seed.
        parameters: number of values that were learned.
        learning_rate: the one of those tried that came nearest, on average over seeds.
    """

    kl: list[float]
    parameters: int
    learning_rate: float


def fit(
    target: Target,
    score: str,
    features: str,
    size: int,
    *,
    seeds: int,
    steps: int,
    learning_rates: tuple[float, ...],
) -> Fit:
    """Fit a score to a target with Adam, once for each seed and learning rate.

    The scores have equally many parameters at one ``size``: a dot product of that width with
    biases, a score network of as many channels (relu, one hidden layer), or half of each.

    Args:
        target: what to match.
        score: one of :data:`SCORES`.
        features: one of :data:`FEATURES`.
        size: width of the dot product, channels of the network.
        seeds: number of starts.
        steps: of Adam; its learning rate falls along a cosine to zero.
        learning_rates: those tried; the best one's result is returned.

    Raises:
        ValueError: an unknown score or features, or a size that cannot be halved.
    """
    if score not in SCORES or features not in FEATURES:
        raise ValueError(f"score {score!r} of features {features!r}: unknown.")
    if size < 1 or (score == "hybrid" and size % 2):
        raise ValueError(f"size is {size}: a hybrid needs an even one, others at least 1.")
    channels = {"dot": 0, "neural": size, "hybrid": size // 2}[score]
    width = size - channels

    def build() -> tuple[list[Tensor], Callable[[], Tensor]]:
        parameters, items, first = _items(target, features, seeds)
        project = _projections(parameters, first, channels, width, seeds)
        return parameters, lambda: project(items())

    return _best(target, build, seeds, steps, learning_rates)


def rank_optimum(
    target: Target, rank: int, *, seeds: int, steps: int, learning_rates: tuple[float, ...]
) -> Fit:
    """The same for free factors: the nearest distribution whose logarithm has rank ``rank``.

    What any dot product of that width could reach, whatever computed its queries and keys. Found by
    descent, so an upper bound of the least KL.
    """

    def build() -> tuple[list[Tensor], Callable[[], Tensor]]:
        n = len(target.log_p)
        q, k = (_random((seeds, n, rank), rank) for _ in range(2))
        return [q, k], lambda: q @ k.mT

    return _best(target, build, seeds, steps, learning_rates)


def _items(
    target: Target, features: str, seeds: int
) -> tuple[list[Tensor], Callable[[], Tensor], int]:
    """Parameters, what computes the items' features, (seeds, n, F), and F."""
    n, known = target.features.shape
    raw = target.features.float().expand(seeds, n, known)
    if features == "raw":
        return [], lambda: raw, known
    if features == "embedding":
        table = torch.randn(seeds, n, EMBEDDING, requires_grad=True)
        return [table], lambda: table, EMBEDDING
    weight = _random((seeds, known, HIDDEN), known)
    bias = _random((seeds, 1, HIDDEN), known)
    return [weight, bias], lambda: torch.nn.functional.gelu(raw @ weight + bias), HIDDEN


def _projections(
    parameters: list[Tensor], first: int, channels: int, width: int, seeds: int
) -> Callable[[Tensor], Tensor]:
    """Scores of items, (seeds, n, F) to (seeds, n, n); what they learn joins ``parameters``."""
    dot, network = [], []
    if width:
        dot = [_random((seeds, first, width), first) for _ in range(2)]
        dot += [_random((seeds, 1, width), first) for _ in range(2)]
    if channels:
        network = _difference_pairs(seeds, first, channels)
    parameters += dot + network

    def scores(items: Tensor) -> Tensor:
        total = torch.zeros(())
        if dot:
            q, k = (items @ weight + bias for weight, bias in zip(dot[:2], dot[2:], strict=True))
            total = q @ k.mT / width**0.5
        if network:
            a, b = items @ network[0] + network[2], items @ network[1]
            hidden = torch.relu(a[:, :, None] + b[:, None])
            total = total + torch.einsum("sijc,sc->sij", hidden, network[3])
        return total

    return scores


def _difference_pairs(seeds: int, first: int, channels: int) -> list[Tensor]:
    """Maps to a and b, bias, output weights: s = −Σ |P x_i − P x_j|, the library's own start."""
    half = torch.randn(seeds, first, (channels + 1) // 2) / first**0.5
    to_a = torch.stack([half, -half], -1).flatten(-2)[..., :channels]
    values = [to_a, -to_a, torch.zeros(seeds, 1, channels), -torch.ones(seeds, channels)]
    return [value.contiguous().requires_grad_() for value in values]


def _random(shape: tuple[int, ...], fan_in: int) -> Tensor:
    return (torch.randn(shape) / fan_in**0.5).requires_grad_()


def _best(
    target: Target,
    build: Callable[[], tuple[list[Tensor], Callable[[], Tensor]]],
    seeds: int,
    steps: int,
    learning_rates: tuple[float, ...],
) -> Fit:
    tried = []
    for learning_rate in learning_rates:
        torch.manual_seed(0)
        parameters, scores = build()
        kl = _descend(target, parameters, scores, steps, learning_rate)
        tried.append(Fit(kl.tolist(), _count(parameters) // seeds, learning_rate))
    return min(tried, key=lambda one: sum(one.kl))


def _descend(
    target: Target,
    parameters: list[Tensor],
    scores: Callable[[], Tensor],
    steps: int,
    learning_rate: float,
) -> Tensor:
    log_p = torch.log_softmax(target.log_p, -1).float()
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        # Starts do not know of one another: the sum over them gives each its own gradient.
        _divergence(log_p, scores()).sum().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return _divergence(log_p, scores()).clamp_min(0)  # rounding can take it below


def _divergence(log_p: Tensor, scores: Tensor) -> Tensor:
    """KL(P* ‖ softmax(scores)), the mean over rows, for each start."""
    return (log_p.exp() * (log_p - torch.log_softmax(scores, -1))).sum(-1).mean(-1)


def _count(parameters: list[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def cases(sizes: tuple[int, ...]) -> Iterator[tuple[str, str, int]]:
    """Every (score, features, size); a hybrid halves its size, so it has no odd ones."""
    for features in FEATURES:
        for score in SCORES:
            for size in sizes:
                if score != "hybrid" or size % 2 == 0:
                    yield score, features, size
