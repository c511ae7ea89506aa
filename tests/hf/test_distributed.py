"""Data parallel and fully sharded training of a converted model equal one process."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .training import batch, build, train

WORLD = 2

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


def inputs():
    """Rows of equal length, so that the mean over ranks is the mean over rows."""
    rows = batch("llama")
    del rows["attention_mask"]
    return rows


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=300),
    )
    own = {key: value.chunk(WORLD)[rank] for key, value in inputs().items()}
    for kind in ("ddp", "fsdp2"):
        model = build("llama")
        if kind == "ddp":
            model = DistributedDataParallel(model)
        else:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (WORLD,))
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        losses = train(model, own)
        dist.all_reduce(losses)
        if rank == 0:
            torch.save(losses / WORLD, Path(folder) / f"{kind}.pt")
    dist.barrier()
    # Not a return: gloo's threads now and then abort a process that takes itself apart.
    os._exit(0)


def test_two_processes_lose_as_much_as_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=WORLD)
    expected = train(build("llama"), inputs())
    assert expected[-1] < expected[0]
    for kind in ("ddp", "fsdp2"):
        found = torch.load(tmp_path / f"{kind}.pt", weights_only=True)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=kind)
