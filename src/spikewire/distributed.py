"""Data parallel training: one process among those that torchrun has started.

After every step all ranks hold the same bits: they start from the first one's weights, move by the
same mean gradients, and a method draws from a generator seeded alike. Only dropout's numbers are
each rank's own. Alone, nothing here does anything. Only this file knows torch.distributed.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from spikewire.errors import SpikewireError, TrainingFailed

PATIENCE = timedelta(seconds=50)  # with a rank that does not answer
PLACE, VALUE = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9  # odd, and without a pattern in their bits
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
T = TypeVar("T")


class RanksDiffer(TrainingFailed):
    """Training failed: ranks that must hold the same bits do not."""


class RankLost(TrainingFailed):
    """Training failed: another rank has ended or does not answer."""


@dataclass(frozen=True)
class Ranks:
    """Who we are among the processes; `local` counts on this machine, `store` is seen by all."""

    rank: int = 0
    world: int = 1
    local: int = 0
    store: Any = None

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.world == 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that speaks and writes."""
        return self.rank == 0

    def part(self, size: int) -> slice:
        """Return our part of so many: together the parts are all of it, none is in two."""
        return slice(size * self.rank // self.world, size * (self.rank + 1) // self.world)

    def share(self, size: int) -> float:
        """Return how much of it our part is."""
        part = self.part(size)
        return (part.stop - part.start) / size

    def broadcast(self, work: Callable[[], T]) -> T:
        """Return what `work` gives on the first rank; a user's mistake there is everyone's."""
        if self.alone:
            return work()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = work()
            except SpikewireError as error:
                answer[1] = str(error)
        with _in_touch(self.rank):
            distributed.broadcast_object_list(answer)
        if answer[1] is not None:
            raise SpikewireError(answer[1])
        return answer[0]

    def gather(self, value: T) -> list[T]:
        """Return everyone's value, by rank."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.world
        with _in_touch(self.rank):
            distributed.all_gather_object(found, value)
        return found

    @torch.no_grad()
    def broadcast_model_(self, model: nn.Module) -> None:
        """Give every rank the first one's parameters and buffers."""
        if not self.alone:
            for tensor in (*model.parameters(), *model.buffers()):
                values = tensor.contiguous()
                with _in_touch(self.rank):
                    distributed.broadcast(values, 0)
                tensor.copy_(values)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up the tensors of all ranks."""
        if not self.alone:
            with _in_touch(self.rank):
                distributed.all_reduce(tensor)
        return tensor

    def agree(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Raise on every rank if any of the tensors is not the same, bit for bit, on all."""
        if self.alone:
            return
        device = next(iter(tensors.values())).device
        prints = torch.stack([fingerprint(tensor.to(device)) for tensor in tensors.values()])
        ends = torch.stack([prints, ~prints])  # the largest of ~x is ~ the smallest of x
        with _in_touch(self.rank):
            distributed.all_reduce(ends, distributed.ReduceOp.MAX)
        same = (ends[0] == ~ends[1]).tolist()
        if not all(same):
            names = [name for name, equal in zip(tensors, same, strict=True) if not equal]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise RanksDiffer(
                f"the ranks differ at step {step} in {', '.join(names[:3])}{more}; "
                "the last checkpoint, on which they agreed, is kept"
            )

    def first_to_fail(self) -> bool:
        """Tell whether no other rank has asked this yet: one mistake is one line."""
        try:
            return self.store is None or self.store.add("failed", 1) == 1
        except RuntimeError:  # the store has ended too
            return True


ALONE = Ranks()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the other processes that torchrun has started, and leave them at the end.

    A group that is there already is used and left open. On a machine with GPUs their tensors go by
    NCCL; those on the CPU go by gloo.
    """
    if distributed.is_available() and distributed.is_initialized():
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), _number("LOCAL_RANK", 0))
        return
    if started() == 1:
        yield ALONE
        return
    from torch.distributed import PrefixStore, rendezvous  # pyright: ignore

    with _in_touch(_number("RANK", 0)):
        store, rank, world = next(iter(rendezvous("env://", timeout=PATIENCE)))
        store = PrefixStore(str(restarts()), store)  # it still has what died with the last
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=world,
            timeout=PATIENCE,
        )
    try:
        yield Ranks(rank, world, _number("LOCAL_RANK", 0), PrefixStore("spikewire", store))
    finally:
        distributed.destroy_process_group()


def started() -> int:
    """Return how many ranks torchrun has started."""
    return _number("WORLD_SIZE", 1) if "RANK" in os.environ else 1


def restarts() -> int:
    """Return how often torchrun has run the command again, since a rank was lost."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0)


def most_restarts() -> int:
    """Return how often torchrun would."""
    return _number("TORCHELASTIC_MAX_RESTARTS", 0)


class GradientMean:
    """Makes what a step computes of parts of a batch the mean over the whole of it.

    Each gradient is sent as soon as backward has it, one all-reduce a parameter, in an order that
    is the same on all ranks. Loss and BatchNorm's running statistics go together in one small
    vector. All of it is there when `backward` returns, so an optimizer and the hooks on its step
    see one process. DistributedDataParallel would do the same with buckets; these networks have
    few and large weights, and this way the model stays as it is, compiled, fused or neither.
    """

    def __init__(self, ranks: Ranks, model: nn.Module, share: float) -> None:
        self.ranks, self.share = ranks, share
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._waiting: list[nn.Parameter] = []  # those behind it are sent first
        self._whole: set[nn.Parameter] = set()
        self._sent: list[Any] = []
        if not ranks.alone:
            for parameter in self.parameters:
                parameter.register_post_accumulate_grad_hook(self._send_whole)

    def backward(self, loss: Tensor, flag: bool = False) -> tuple[Tensor, Tensor | bool]:
        """Leave gradients of the mean loss; return it, and whether any rank has raised its flag."""
        if self.ranks.alone:
            loss.backward()
            return loss.detach(), flag
        raised = loss.new_full((1,), float(flag))
        small = self._packed(loss.detach().view(1), raised)
        self._waiting, self._whole = list(self.parameters), set()
        self._send(small)
        (loss * self.share).backward()
        for parameter in reversed(self._waiting):
            if parameter.grad is not None:
                self._send(parameter.grad)
        self._wait()
        self._unpack_(small[2:])
        return small[0], small[1] > 0

    @torch.no_grad()
    def statistics_(self) -> None:
        """Make BatchNorm's running statistics the mean over the ranks."""
        if self.statistics and not self.ranks.alone:
            self._unpack_(self.ranks.sum_(self._packed()))

    def _packed(self, *figures: Tensor) -> Tensor:
        return torch.cat([*figures, *(x.flatten() for x in self.statistics)]) * self.share

    def _unpack_(self, packed: Tensor) -> None:
        parts = packed.split([x.numel() for x in self.statistics])
        for buffer, part in zip(self.statistics, parts, strict=True):
            buffer.copy_(part.view_as(buffer))

    def _send_whole(self, parameter: nn.Parameter) -> None:
        self._whole.add(parameter)
        while self._waiting and self._waiting[-1] in self._whole:
            gradient = self._waiting.pop().grad
            assert gradient is not None
            self._send(gradient)

    def _send(self, tensor: Tensor) -> None:
        with _in_touch(self.ranks.rank):
            self._sent.append(distributed.all_reduce(tensor, async_op=True))

    def _wait(self) -> None:
        with _in_touch(self.ranks.rank):
            for work in self._sent:
                work.wait()
        self._sent = []


def fingerprint(tensor: Tensor) -> Tensor:
    """Return 64 bits that change with any value and with the place of any, on the same device."""
    bits = tensor.detach().reshape(-1).view(INTEGERS[tensor.element_size()])
    mixed = torch.arange(len(bits), device=bits.device).mul_(PLACE).add_(bits, alpha=VALUE)
    return mixed.bitwise_xor_(mixed >> 32).sum()


@contextmanager
def _in_touch(rank: int) -> Iterator[None]:
    """Say in a line that a rank is gone; torch says it in several, each backend in its own."""
    try:
        yield
    except ValueError as error:  # half of torchrun's variables
        raise SpikewireError(f"RANK and WORLD_SIZE are set, but not by torchrun: {error}") from None
    except RuntimeError as error:
        raise RankLost(
            f"rank {rank}: another rank has ended, or does not answer for "
            f"{PATIENCE.seconds} s; go on with --resume"
        ) from error


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))
