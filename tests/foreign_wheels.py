"""Makes torchvision and torchaudio harmless beside a build of torch they were not compiled for.

Lightning and transformers import them where they are installed, and SpikingJelly and Norse install
them. A wheel for another build of torch (CUDA beside CPU) cannot load its operators: torchvision
fails at the declaration of the first, and torchaudio at loading its library. Nothing here calls
them, so the declaration is enough for the one, and the other is hidden.
"""

import sys
from typing import Any

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError as error:
    if "torchvision::nms" not in str(error):
        raise
    LIBRARY = torch.library.Library("torchvision", "DEF")  # its operators live as long as it does
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

try:
    import torchaudio  # noqa: F401
except OSError:
    modules: dict[str, Any] = sys.modules
    modules["torchaudio"] = None  # as if it were not installed
