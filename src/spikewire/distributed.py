"""Data parallel training under torchrun: ranks, and the mean of their gradients.

After every step all ranks hold the same bits: they start from the weights of rank 0, take the same
mean gradients, and a method draws from a generator with the same seed. Only dropout differs between
ranks. With a single process nothing here has an effect. Besides this file only `pruning.ranks` uses
torch.distributed, for training loops of the user's own.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from spikewire.errors import SpikewireError, TrainingFailed, check
from spikewire.pruning.integrity import bit_view

TIMEOUT = timedelta(seconds=50)  # for a rank that does not answer
POSITION_FACTOR, VALUE_FACTOR = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9  # odd, random-looking bits
T = TypeVar("T")


class RanksDiffer(TrainingFailed):
    """Training failed: ranks that must hold the same bits do not."""


class RankLost(TrainingFailed):
    """Training failed: another rank has ended or does not answer."""


@dataclass(frozen=True)
class Ranks:
    """The position of a process among those of a data parallel training.

    Args:
        rank: Number of this process, from 0.
        world_size: Number of processes.
        local_rank: Number of this process on its machine.
        store: Key-value store shared by all ranks; None without one.

    Example:
        >>> with process_group() as ranks:
        ...     images = images[ranks.part(len(images))]
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    store: Any = None

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.world_size == 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which prints and writes files."""
        return self.rank == 0

    def part(self, size: int) -> slice:
        """Return the slice of `size` items that belongs to this rank; each item has one rank."""
        first, end = (size * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return slice(first, end)

    def fraction(self, size: int) -> float:
        """Return the fraction of `size` items that belongs to this rank."""
        part = self.part(size)
        return (part.stop - part.start) / size

    def broadcast(self, work: Callable[[], T]) -> T:
        """Call `work` on rank 0 and return its result on every rank.

        Args:
            work: Function without arguments; its result must be picklable.

        Returns:
            The result of rank 0.

        Raises:
            SpikewireError: On every rank, if `work` raises it on rank 0.
            RankLost: If another rank does not answer.
        """
        if self.alone:
            return work()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = work()
            except SpikewireError as error:
                answer[1] = str(error)
        with _communication_errors(self.rank):
            distributed.broadcast_object_list(answer)
        if answer[1] is not None:
            raise SpikewireError(answer[1])
        return answer[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.world_size
        with _communication_errors(self.rank):
            distributed.all_gather_object(values, value)
        return values

    @torch.no_grad()
    def broadcast_model_(self, model: nn.Module) -> None:
        """Copy the parameters and buffers of rank 0 to every rank."""
        if not self.alone:
            for tensor in (*model.parameters(), *model.buffers()):
                values = tensor.contiguous()
                with _communication_errors(self.rank):
                    distributed.broadcast(values, 0)
                tensor.copy_(values)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace the tensor by its sum over all ranks, and return it."""
        if not self.alone:
            with _communication_errors(self.rank):
                distributed.all_reduce(tensor)
        return tensor

    def require_equal(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Check that all ranks hold the same bits.

        Args:
            tensors: The tensors to compare, by name.
            step: The optimizer step, for the message.

        Raises:
            RanksDiffer: On every rank, if a tensor is not equal on all of them.
            RankLost: If another rank does not answer.
        """
        if self.alone:
            return
        device = next(iter(tensors.values())).device
        prints = torch.stack([fingerprint(tensor.to(device)) for tensor in tensors.values()])
        extremes = torch.stack([prints, ~prints])  # the maximum of ~x is ~ the minimum of x
        with _communication_errors(self.rank):
            distributed.all_reduce(extremes, distributed.ReduceOp.MAX)
        equal = (extremes[0] == ~extremes[1]).tolist()
        if not all(equal):
            names = [name for name, same in zip(tensors, equal, strict=True) if not same]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise RanksDiffer(
                f"the ranks differ at step {step} in {', '.join(names[:3])}{more}; "
                "the last checkpoint, where they were equal, is kept"
            )

    def first_to_fail(self) -> bool:
        """Return whether no other rank has called this yet, so that one error is printed once."""
        try:
            return self.store is None or self.store.add("failed", 1) == 1
        except RuntimeError:  # the process that holds the store has ended
            return True


ALONE = Ranks()


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Join the process group of torchrun, and leave it at the end of the block.

    An initialized process group is used and left open. Tensors on GPUs are sent with NCCL, tensors
    on the CPU with gloo.

    Yields:
        The rank of this process; `ALONE` outside torchrun.

    Raises:
        SpikewireError: If the environment variables of torchrun are incomplete.
        RankLost: If the other ranks do not answer.

    Example:
        >>> with process_group() as ranks:
        ...     ranks.broadcast_model_(model)
    """
    if distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        yield Ranks(rank, world_size, _environment_number("LOCAL_RANK", 0))
        return
    if launched_ranks() == 1:
        yield ALONE
        return
    from torch.distributed import PrefixStore, rendezvous  # pyright: ignore

    with _communication_errors(_environment_number("RANK", 0)):
        store, rank, world_size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
        store = PrefixStore(str(restart_count()), store)  # it still holds keys of the last start
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=world_size,
            timeout=TIMEOUT,
        )
    try:
        local_rank = _environment_number("LOCAL_RANK", 0)
        yield Ranks(rank, world_size, local_rank, PrefixStore("spikewire", store))
    finally:
        distributed.destroy_process_group()


def launched_ranks() -> int:
    """Return how many ranks torchrun has launched; 1 outside torchrun."""
    if "RANK" not in os.environ:
        return 1
    rank, ranks = _environment_number("RANK", 0), _environment_number("WORLD_SIZE", 1)
    check(rank < ranks, "RANK", rank, f"less than WORLD_SIZE, {ranks}, as torchrun sets it")
    return ranks


def restart_count() -> int:
    """Return how often torchrun has restarted the command after a rank was lost."""
    return _environment_number("TORCHELASTIC_RESTART_COUNT", 0)


def max_restarts() -> int:
    """Return how often torchrun may restart the command."""
    return _environment_number("TORCHELASTIC_MAX_RESTARTS", 0)


class GradientMean:
    """Average gradients, loss and BatchNorm's running statistics over the ranks.

    Each gradient is sent as soon as backward has computed it, with one all-reduce per parameter, in
    an order that is the same on all ranks. Loss and running statistics are sent as one vector.
    All of it has arrived when `backward` returns, so the optimizer and the hooks on its step see
    what a single process would. DistributedDataParallel does the same with buckets; these networks
    have few large weights, and without it the model stays unwrapped, compiled or fused or neither.

    Args:
        ranks: The position of this process.
        model: The network.
        fraction: The fraction of a batch that this rank computes.
    """

    def __init__(self, ranks: Ranks, model: nn.Module, fraction: float) -> None:
        self.ranks, self.fraction = ranks, fraction
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._unsent: list[nn.Parameter] = []  # the last one is sent next
        self._ready: set[nn.Parameter] = set()
        self._pending: list[Any] = []
        if not ranks.alone:
            for parameter in self.parameters:
                parameter.register_post_accumulate_grad_hook(self._send_ready)

    def backward(
        self, loss: Tensor, flag: bool = False, penalty: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor | bool]:
        """Compute the gradients of the mean loss over all ranks.

        Args:
            loss: Mean loss of this rank's part of the batch.
            flag: A signal to the other ranks, such as a request to stop.
            penalty: A term of the loss that has a gradient, but is not part of the loss shown.

        Returns:
            The mean loss without penalty, and whether any rank has set its flag.
        """
        if self.ranks.alone:
            (loss + penalty).backward()
            return loss.detach(), flag
        flags = loss.new_full((1,), float(flag))
        vector = self._pack(loss.detach().view(1), flags)
        self._unsent, self._ready = list(self.parameters), set()
        self._send(vector)
        ((loss + penalty) * self.fraction).backward()
        for parameter in reversed(self._unsent):
            if parameter.grad is not None:
                self._send(parameter.grad)
        self._wait()
        self._unpack_(vector[2:])
        return vector[0], vector[1] > 0

    @torch.no_grad()
    def average_statistics_(self) -> None:
        """Replace BatchNorm's running statistics by their mean over the ranks."""
        if self.statistics and not self.ranks.alone:
            self._unpack_(self.ranks.sum_(self._pack()))

    def _pack(self, *values: Tensor) -> Tensor:
        return torch.cat([*values, *(x.flatten() for x in self.statistics)]) * self.fraction

    def _unpack_(self, vector: Tensor) -> None:
        parts = vector.split([x.numel() for x in self.statistics])
        for buffer, part in zip(self.statistics, parts, strict=True):
            buffer.copy_(part.view_as(buffer))

    def _send_ready(self, parameter: nn.Parameter) -> None:
        """Send the gradients that are complete, as far as the common order allows."""
        self._ready.add(parameter)
        while self._unsent and self._unsent[-1] in self._ready:
            gradient = self._unsent.pop().grad
            assert gradient is not None
            self._send(gradient)

    def _send(self, tensor: Tensor) -> None:
        with _communication_errors(self.ranks.rank):
            self._pending.append(distributed.all_reduce(tensor, async_op=True))

    def _wait(self) -> None:
        with _communication_errors(self.ranks.rank):
            for work in self._pending:
                work.wait()
        self._pending = []


def fingerprint(tensor: Tensor) -> Tensor:
    """Return a 64-bit hash of the values and their positions, on the tensor's device."""
    bits = bit_view(tensor.detach().reshape(-1))
    mixed = torch.arange(len(bits), device=bits.device).mul_(POSITION_FACTOR)
    mixed.add_(bits, alpha=VALUE_FACTOR)
    return mixed.bitwise_xor_(mixed >> 32).sum()


@contextmanager
def _communication_errors(rank: int) -> Iterator[None]:
    """Turn the errors of torch.distributed, which differ by backend, into one line."""
    try:
        yield
    except ValueError as error:  # some of torchrun's variables are missing
        raise SpikewireError(f"RANK and WORLD_SIZE are set, but not by torchrun: {error}") from None
    except RuntimeError as error:
        raise RankLost(
            f"rank {rank}: another rank has ended, or has not answered for "
            f"{TIMEOUT.seconds} s; resume with --resume"
        ) from error


def _environment_number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    valid = text.isdecimal() and len(text) < 10
    check(valid, name, text, "a whole number, as torchrun sets it")
    return int(text)
