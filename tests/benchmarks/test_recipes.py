"""The step of benchmarks/recipes.py, many networks at once, against the product's, one by one."""

import math

import pytest
import recipes
import torch
from torch.nn import functional

from spikewire import METHODS
from spikewire.data.augment import AUGMENTATIONS
from spikewire.errors import SpikewireError
from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.models import build

STEPS, BATCH = 16, 16
ALONE = {"dropout": 0.0, "ramp": 0.5, "connectivity": 0.1}


def alone(settings, start, images, labels):
    """Train one network with the product; return weights and masks."""
    of = recipes.BASE | settings
    model = build("mnist-mlp", readout="current", neuron="if", reset="soft", surrogate="sigmoid")
    for parameter, part in zip(model.parameters(), start.split([800 * 784, 8000]), strict=True):
        parameter.data.copy_(part.view_as(parameter))
    shown = (images - of["centre"]).unflatten(-1, (1, 28, 28))
    scale_to_fire_(model, shown[0])
    optimizer = torch.optim.Adam(model.parameters(), of["lr"])
    options = {key: of[key] for key in ("connectivity", "ramp", "balance", "shrink")}
    method = METHODS["budget"](**options).attach(model, optimizer, total_steps=STEPS)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = of["lr"] * (1 + math.cos(math.pi * step / STEPS)) / 2
        optimizer.zero_grad()
        rate = model(shown[step]).mean(0)
        functional.cross_entropy(of["rate_scale"] * rate, labels[step]).backward()
        optimizer.step()
    return [
        torch.cat([t.detach().flatten() for t in ts])
        for ts in (model.parameters(), method.masks().values())
    ]


def test_networks_side_by_side_learn_what_each_learns_alone():
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(STEPS, BATCH, 784, generator=generator) ** 3
    labels = torch.randint(0, 10, (STEPS, BATCH), generator=generator)
    settings = [ALONE, ALONE | {"shrink": 0.0, "lr": 2e-3, "balance": 0.3, "centre": 0.0}]
    networks = recipes.Networks(settings, [0, 1], "cpu")
    wanted = [
        alone(of, start, images, labels)
        for of, start in zip(settings, networks.latent.clone(), strict=True)
    ]
    networks.scale_to_fire_(images[0])
    for step in range(STEPS):
        shown = images[step] - networks.two["centre"]
        number = torch.tensor(float(step))
        networks.learn(shown, labels[step].expand(2, -1), number / STEPS, number + 1)
        if (step + 1) % recipes.EVERY == 0:
            networks.rewire((number + 1) / STEPS)
    for weight, mask, (weight_alone, mask_alone) in zip(
        networks.weight, networks.mask, wanted, strict=True
    ):
        assert int((mask != mask_alone).sum()) <= 4  # float32 may exchange a pair at the cut
        same = mask & mask_alone
        assert torch.allclose(weight[same], weight_alone[same], atol=2e-4)
    assert int(networks.mask[0].sum()) == round(0.1 * 635200)


def test_images_move_as_the_product_moves_them():
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(0, 256, (6, 1, 28, 28), generator=generator, dtype=torch.uint8)
    draws = torch.Generator().manual_seed(3)
    matrices = AUGMENTATIONS["affine"].draw(6, (28, 28), draws, 1.5, 8.0, 0.1, 0.15)
    wanted = AUGMENTATIONS["affine"].apply(images, matrices)
    draws.manual_seed(3)
    drawn = torch.cat([torch.rand(6, n, generator=draws) for n in (4, 1)], dim=1)
    keys = ("pixels", "degrees", "share", "slant")
    of = {key: torch.full((6,), recipes.BASE[key]) for key in keys}
    assert torch.allclose(recipes.move(images, 2 * drawn - 1, of), wanted, atol=1e-2)


def test_a_wrong_recipe_is_named():
    assert recipes.parse("base") == {}
    assert recipes.parse("lr=1e-3,shrink=0") == {"lr": 1e-3, "shrink": 0.0}
    for name in ("speed=1", "lr=fast", "lr"):
        with pytest.raises(SpikewireError, match=name.split("=")[0]):
            recipes.parse(name)
