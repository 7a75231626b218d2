"""Several processes in a training loop of the user's own: what is counted is that of all."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from spikewire import Budget, GradR
from spikewire.nn.layers import Spiking, linear
from spikewire.nn.neurons import IF

METHODS = {"budget": Budget(synops=200, every=1), "gradr": GradR(synops=200, every=1)}


def train_on_rank(rank, folder):
    """Train on this rank's own images; leave the weights, masks and counts in `folder`."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    ends = {}
    for name, method in METHODS.items():
        torch.manual_seed(0)
        layers = {"fc1": linear(20, 30), "if1": IF(0.1), "fc2": linear(30, 30), "if2": IF(0.1)}
        model = Spiking(layers | {"fc3": linear(30, 4)}, time_steps=3, input_shape=(20,))
        net = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        pruner = method.attach(net, optimizer, total_steps=12)
        torch.manual_seed(1 + rank)
        for _ in range(12):
            optimizer.zero_grad()
            net(torch.rand(8, 20) * (1 + 2 * rank)).square().mean().backward()
            optimizer.step()
        counts = pruner.memory["activity"]
        ends[name] = [counts, *pruner.finish().values(), *model.parameters()]
    torch.save(ends, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_a_target_in_operations_has_the_same_masks_on_all_ranks(tmp_path):
    torch.multiprocessing.spawn(train_on_rank, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for name in METHODS:
        assert all(map(torch.equal, first[name], second[name])), name
        assert first[name][0][-1] > 16, "images of both ranks, over more than one step"
