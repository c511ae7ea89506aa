"""Data parallel and fully sharded training on two processes equal one process."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import neural_attention as na

WORLD, STEPS = 2, 3

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        na.NeuralAttention(16, 2, score="neural", score_network={"width": 4}),
        na.NeuralAttention(16, 2, score="hybrid", projection="residual"),
    )


def batches() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(STEPS, 2 * WORLD, 9, 16)


def loss_of(network: nn.Module, x: Tensor) -> Tensor:
    return network(x).square().mean()


def train(network: nn.Module, x: Tensor) -> list[float]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for batch in x:
        optimizer.zero_grad()
        loss = loss_of(network, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def work(rank: int, kind: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
    )
    network = model()
    if kind == "ddp":
        network = DistributedDataParallel(network)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (WORLD,))
        for layer in network:
            fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)
    losses = torch.tensor(train(network, batches().chunk(WORLD, dim=1)[rank]))
    dist.all_reduce(losses)
    if rank == 0:
        torch.save(losses / WORLD, Path(folder) / "losses.pt")
    dist.barrier()
    # Not a return: gloo's threads now and then abort a process that takes itself apart.
    os._exit(0)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_lose_as_much_as_one(kind: str, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work, args=(kind, str(tmp_path)), nprocs=WORLD)
    found = torch.load(tmp_path / "losses.pt", weights_only=True)
    expected = torch.tensor(train(model(), batches()))
    assert expected[-1] < expected[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
