"""`PrunerCallback` for Hugging Face's `Trainer`: attach, log, save, restore, finish."""

from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from spikewire.errors import SpikewireError, check
from spikewire.files import atomic_write, io_errors
from spikewire.pruning import Method, Pruner, Targets, prunable

FILE = "pruner.pt"  # in a checkpoint's folder


class PrunerCallback(TrainerCallback):
    """Attaches a method when training begins, and finishes when it ends.

    Once per epoch it appends ``pruner/connectivity``, ``pruner/pruned`` and ``pruner/regrown`` to
    the trainer's ``state.log_history``. The pruner's state is saved as ``pruner.pt`` in each
    checkpoint's folder, and loaded from there when training resumes, and when the trainer loads
    the best model at the end.

    Args:
        method: the method and its hyper-parameters.
        total_steps: optimizer steps of the whole run; by default the trainer's ``max_steps``.
        targets: which weights to prune: see `spikewire.Method.attach`.
        seed: seed of the pruner's random choices.
        keep_masks: whether the zeros are kept if the same optimizer continues training.
        resume_from: folder of the checkpoint to resume from, where it is not the trainer's own
            ``output_dir/checkpoint-<step>``.

    Attributes:
        pruner: the pruner, from the beginning of training on.

    Example:
        >>> callback = PrunerCallback(spikewire.Budget(connectivity=0.1))
        >>> transformers.Trainer(model, args, train_dataset=data, callbacks=[callback]).train()
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
        resume_from: str | Path | None = None,
    ) -> None:
        check(isinstance(method, Method), "method", method, "one such as spikewire.Budget()")
        self.method, self.total_steps, self.targets = method, total_steps, targets
        self.seed, self.keep_masks, self.resume_from = seed, keep_masks, resume_from

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Attach; in a resumed run also load the pruner's state, after model and optimizer.

        Raises:
            SpikewireError: if the checkpoint has no state of a pruner, or the method cannot be
                attached.
        """
        if self.pruner is not None:
            self.pruner.detach()  # of a run that was interrupted
        self.pruner = self.method.attach(
            kwargs["model"],
            kwargs["optimizer"],
            total_steps=state.max_steps if self.total_steps is None else self.total_steps,
            targets=self.targets,
            seed=self.seed,
        )
        if state.global_step:
            self._load(Path(self.resume_from or _folder(args, state)))

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Append the pruner's statistics to the trainer's log."""
        assert self.pruner is not None
        stats = {f"pruner/{name}": value for name, value in self.pruner.stats().items()}
        state.log_history.append({**stats, "epoch": state.epoch or 0.0, "step": state.global_step})

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Save the pruner's state beside the trainer's own files.

        Raises:
            SpikewireError: if the file cannot be written.
        """
        assert self.pruner is not None
        path = _folder(args, state) / FILE
        if state.is_world_process_zero and self.pruner.model is not None:
            with io_errors(path), atomic_write(path) as file:
                torch.save(self.pruner.state_dict(), file)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Leave a plain model with exact zeros: the last one, or the best if that was loaded."""
        assert self.pruner is not None
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._load(Path(state.best_model_checkpoint))
        self.pruner.finish(self.keep_masks)

    def _load(self, folder: Path) -> None:
        assert self.pruner is not None
        path = folder / FILE
        if not path.is_file():
            raise SpikewireError(
                f"{path}: no such file; the checkpoint was saved without this callback, or is "
                "elsewhere: give PrunerCallback(resume_from=...)"
            )
        self.pruner.load_state_dict(torch.load(path, weights_only=True))


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or "") / f"checkpoint-{state.global_step}"
