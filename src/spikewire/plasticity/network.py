"""`Plastic`: the contract of a network with a learning rule of its own."""

from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer


class Sizes(NamedTuple):
    """What a network must fit.

    Args:
        input_shape: shape of an image.
        classes: number of classes.
        hidden: number of neurons that learn.
        time_steps: how many time steps an image is shown.
    """

    input_shape: tuple[int, ...]
    classes: int
    hidden: int
    time_steps: int


class Plastic(nn.Module):
    """A network that learns by a local rule instead of ``loss.backward()``.

    A subclass writes `learn`, `optimizer` and `forward`. All its state is in parameters and
    buffers, so that a checkpoint holds it.

    Args:
        constants: an instance of its `Constants`.
        sizes: what it must fit; the attribute `time_steps` may be changed.
    """

    Constants: ClassVar[Any]  # dataclass of the constants, each declared by `fields.setting`
    default_hidden: ClassVar[int] = 100

    def __init__(self, constants: Any, sizes: Sizes) -> None:
        super().__init__()
        self.constants = constants
        self.input_shape, self.classes, self.hidden, self.time_steps = sizes

    def learn(self, images: Tensor, labels: Tensor) -> Tensor:
        """Accumulate the rule's update over a batch: minus it is left in ``.grad``.

        Args:
            images: ``[batch, *input_shape]``, pixels in [0, 1].
            labels: class numbers ``[batch]``.

        Returns:
            What `forward` returned for these images before learning from them.
        """
        raise NotImplementedError

    def optimizer(self, lr: float) -> Optimizer:
        """Return the optimizer whose ``step()`` applies the update.

        Args:
            lr: learning rate, the factor on the update.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Show the constants."""
        return str(self.constants)
