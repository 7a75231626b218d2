"""`PrunerCallback` for Lightning's `Trainer`: attach, log, save, restore, finish."""

import math
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from spikewire.errors import SpikewireError, check
from spikewire.pruning import Method, Pruner, Targets, prunable


class PrunerCallback(pl.Callback):
    """Attaches a method when training starts, and finishes when it ends.

    Once per epoch it logs ``pruner/connectivity``, ``pruner/pruned`` and ``pruner/regrown``. The
    pruner's state is saved in and restored from the trainer's checkpoints. Automatic and manual
    optimization both work, with one optimizer or several.

    Args:
        method: the method and its hyper-parameters.
        total_steps: optimizer steps of the whole run; by default the trainer's own estimate.
        targets: which weights to prune: see `spikewire.Method.attach`.
        seed: seed of the pruner's random choices.
        keep_masks: whether the zeros are kept if the same optimizers continue training.

    Attributes:
        pruner: the pruner, from the start of training on.

    Example:
        >>> callback = PrunerCallback(spikewire.Budget(connectivity=0.05))
        >>> lightning.pytorch.Trainer(max_epochs=10, callbacks=[callback]).fit(module, loader)
        >>> callback.pruner.masks()
    """

    pruner: Pruner | None = None

    def __init__(
        self,
        method: Method,
        *,
        total_steps: int | None = None,
        targets: Targets = prunable,
        seed: int = 0,
        keep_masks: bool = False,
    ) -> None:
        super().__init__()
        check(isinstance(method, Method), "method", method, "one such as spikewire.Budget()")
        self.method, self.total_steps, self.targets = method, total_steps, targets
        self.seed, self.keep_masks = seed, keep_masks
        self._saved: dict[str, Any] | None = None

    @property
    def state_key(self) -> str:
        """The name under which the state is saved in a checkpoint."""
        return f"spikewire.{self.method.name}"

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach; in a resumed run also load the pruner's state, after model and optimizers.

        Raises:
            SpikewireError: if the number of steps is unknown, the checkpoint is of a finished run,
                or the method cannot be attached.
        """
        given = self.total_steps
        steps: Any = trainer.estimated_stepping_batches if given is None else given
        if steps == math.inf:
            raise SpikewireError(
                "total_steps: the trainer has no last step; give it max_steps or max_epochs, or "
                "PrunerCallback(method, total_steps=...)"
            )
        saved, self._saved = self._saved, None
        if saved is not None and "pruner" not in saved:
            raise SpikewireError(
                "ckpt_path: the checkpoint was saved after the pruner finished; load its weights "
                "into the module and start another fit"
            )
        self.pruner = self.method.attach(
            pl_module,
            *trainer.optimizers,
            total_steps=int(steps) if given is None else steps,
            targets=self.targets,
            seed=self.seed,
        )
        if saved is not None:
            self.pruner.load_state_dict(saved["pruner"])

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the pruner's statistics."""
        assert self.pruner is not None
        stats = self.pruner.stats()
        pl_module.log_dict({f"pruner/{name}": value for name, value in stats.items()})

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave a plain model with exact zeros."""
        assert self.pruner is not None
        self.pruner.finish(self.keep_masks)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Remove the hooks; the weights stay as the network saw them."""
        if self.pruner is not None:
            self.pruner.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return the pruner's state, or its masks once it has finished."""
        if self.pruner is None:
            return {}
        if self.pruner.model is not None:
            return {"pruner": self.pruner.state_dict()}
        masks: dict[str, Tensor] = self.pruner.masks()
        return {"masks": masks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts: the optimizers are restored later."""
        self._saved = state_dict
