"""Models of SpikingJelly, snnTorch and Norse as in their tutorials, for the tests of export."""

import sys
import types
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

with warnings.catch_warnings():  # what they do when imported is not ours to fix
    warnings.simplefilter("ignore")
    import norse.torch as norse
    import snntorch
    from spikingjelly.activation_based import functional as jelly
    from spikingjelly.activation_based import layer, neuron, surrogate


@torch.no_grad()
def settle_(model: nn.Module, seed: int = 0, gain: float = 4.0) -> nn.Module:
    """Give weights and BatchNorm a scale as after training, so that many neurons fire."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.mul_(gain)
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.8, 2.0)
            nn.init.uniform_(module.bias, -0.1, 0.6)
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.05, 0.3)
    return model.eval()


# SpikingJelly's neurons with every update and reset that is recorded.
NODES = {
    "if": (neuron.IFNode, {}),
    "if, soft reset": (neuron.IFNode, {"v_reset": None}),
    "lif": (neuron.LIFNode, {"tau": 1.3}),
    "lif, soft reset": (neuron.LIFNode, {"tau": 1.5, "v_reset": None, "v_threshold": 0.7}),
    "lif, rest": (neuron.LIFNode, {"v_reset": -0.2, "v_threshold": 0.5}),
    "lif, input not decayed": (neuron.LIFNode, {"tau": 3.0, "decay_input": False}),
    "parametric lif": (neuron.ParametricLIFNode, {"init_tau": 1.4}),
    "parametric lif, input not decayed": (
        neuron.ParametricLIFNode,
        {"init_tau": 2.7, "decay_input": False, "v_reset": None},
    ),
    "current-based lif": (neuron.CUBALIFNode, {"c_decay": 0.3, "v_decay": 0.6}),
    "current-based lif, soft reset": (
        neuron.CUBALIFNode,
        {"v_threshold": 2.0, "v_reset": None, "v_decay": 0.9},
    ),
}


class JellyConv(nn.Module):
    """SpikingJelly's tutorial for Fashion-MNIST: an image repeated over time, multi-step mode."""

    def __init__(self, node=neuron.IFNode, time_steps=4, channels=8, **options):
        super().__init__()

        def fire():
            return node(surrogate_function=surrogate.ATan(), **options)

        self.time_steps = time_steps
        self.conv_fc = nn.Sequential(
            layer.Conv2d(1, channels, 3, padding=1, bias=False),
            layer.BatchNorm2d(channels),
            fire(),
            layer.MaxPool2d(2, 2),
            layer.Conv2d(channels, channels, 3, padding=1, bias=False),
            layer.BatchNorm2d(channels),
            fire(),
            layer.MaxPool2d(2, 2),
            layer.Flatten(),
            layer.Dropout(0.5),
            layer.Linear(channels * 7 * 7, 64, bias=False),
            fire(),
            layer.Linear(64, 20, bias=False),
            fire(),
            layer.VotingLayer(2),
        )
        jelly.set_step_mode(self, "m")

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_fc(x.unsqueeze(0).repeat(self.time_steps, 1, 1, 1, 1)).mean(0)


class JellyVgg(nn.Sequential):
    """Strides instead of pooling, dilation and groups; frames ``[time, batch, ...]``."""

    def __init__(self):
        layers, inputs = [], 2
        for outputs, stride, groups, dilation in (
            (16, 1, 1, 1), (16, 2, 2, 1), (24, 1, 1, 2), (24, 2, 4, 1),
        ):  # fmt: skip
            options = {"stride": stride, "groups": groups, "dilation": dilation}
            layers += [
                layer.Conv2d(inputs, outputs, 3, padding=dilation, **options),
                layer.BatchNorm2d(outputs),
                neuron.ParametricLIFNode(init_tau=2.3, v_threshold=0.6),
            ]
            inputs = outputs
        super().__init__(
            *layers,
            layer.AvgPool2d(3, stride=2, padding=1),
            layer.Flatten(),
            layer.Linear(24 * 3 * 3, 40),
            neuron.LIFNode(tau=1.7, decay_input=False, v_reset=None, v_threshold=0.3),
            layer.Linear(40, 10),
            neuron.LIFNode(tau=3.0, v_threshold=0.2),
        )
        jelly.set_step_mode(self, "m")


def import_resnet(kind: str):
    """Return SpikingJelly's module of residual networks of a kind."""
    return import_model(f"{kind}_resnet")


def import_model(file: str):
    """Return SpikingJelly's module; of torchvision it needs only the download of weights."""
    name = f"spikingjelly.activation_based.model.{file}"
    if name not in sys.modules:
        stub = types.ModuleType("torchvision.models.utils")
        stub.load_state_dict_from_url = None
        names = ("torchvision", "torchvision.models", "torchvision.models.utils")
        before = {key: sys.modules.get(key) for key in names}
        sys.modules |= dict.fromkeys(names, stub)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                __import__(name)
        finally:
            for key, module in before.items():
                sys.modules.pop(key) if module is None else sys.modules.update({key: module})
    return sys.modules[name]


def sew_block() -> nn.Module:
    """A residual block of SEW-ResNet with a strided shortcut, and what comes before and after."""
    sew, node = import_resnet("sew"), neuron.LIFNode
    down = nn.Sequential(sew.conv1x1(8, 16, 2), layer.BatchNorm2d(16))
    options = {"cnf": "ADD", "spiking_neuron": node, "tau": 2.0}
    net = nn.Sequential(
        layer.Conv2d(3, 8, 7, stride=2, padding=3, bias=False),
        layer.BatchNorm2d(8),
        node(),
        layer.MaxPool2d(3, stride=2, padding=1),
        sew.BasicBlock(8, 16, 2, down, **options),
        sew.BasicBlock(16, 16, **options),
        layer.AdaptiveAvgPool2d((1, 1)),
        layer.Flatten(),
        layer.Linear(16, 10),
    )
    jelly.set_step_mode(net, "m")
    return net


def sew_resnet18() -> nn.Module:
    """The whole SEW-ResNet-18 of SpikingJelly."""
    options = {"cnf": "ADD", "spiking_neuron": neuron.IFNode, "num_classes": 10}
    net = import_resnet("sew").sew_resnet18(pretrained=False, detach_reset=True, **options)
    jelly.set_step_mode(net, "m")
    return net


def spiking_block() -> nn.Module:
    """Residual blocks of Spiking-ResNet, which adds currents: with and without a convolution."""
    resnet, node = import_resnet("spiking"), neuron.LIFNode
    down = nn.Sequential(resnet.conv1x1(8, 16, 2), layer.BatchNorm2d(16))
    options = {"spiking_neuron": node, "tau": 2.0}
    net = nn.Sequential(
        layer.Conv2d(3, 8, 3, padding=1, bias=False),
        layer.BatchNorm2d(8),
        node(),
        resnet.BasicBlock(8, 16, 2, down, **options),
        resnet.BasicBlock(16, 16, **options),
        layer.AdaptiveAvgPool2d((1, 1)),
        layer.Flatten(),
        layer.Linear(16, 10),
    )
    jelly.set_step_mode(net, "m")
    return net


class SnnTorchDense(nn.Module):
    """snnTorch's tutorial 5: a loop over time inside the model."""

    def __init__(self, time_steps=25, **options):
        super().__init__()
        self.time_steps = time_steps
        self.fc1, self.lif1 = nn.Linear(784, 100), snntorch.Leaky(beta=0.95, **options)
        self.fc2, self.lif2 = nn.Linear(100, 10), snntorch.Leaky(beta=0.8, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spikes, membranes = [], []
        for _ in range(self.time_steps):
            spk1, mem1 = self.lif1(self.fc1(x.flatten(1)), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk2)
            membranes.append(mem2)
        return torch.stack(spikes, dim=0), torch.stack(membranes, dim=0)


class SnnTorchConv(nn.Module):
    """snnTorch's tutorial 6, whose currents are pooled before the neurons; spikes are added up."""

    def __init__(self):
        super().__init__()
        self.conv1, self.lif1 = nn.Conv2d(1, 12, 5), snntorch.Leaky(beta=0.9)
        self.conv2, self.lif2 = nn.Conv2d(12, 16, 5), snntorch.Leaky(beta=0.9)
        self.fc1, self.lif3 = nn.Linear(16 * 4 * 4, 10), snntorch.Leaky(beta=0.9)

    def forward(self, x: Tensor) -> Tensor:
        mem1, mem2, mem3 = (lif.init_leaky() for lif in (self.lif1, self.lif2, self.lif3))
        out = 0
        for _ in range(10):
            spk1, mem1 = self.lif1(functional.max_pool2d(self.conv1(x), 2), mem1)
            spk2, mem2 = self.lif2(functional.avg_pool2d(self.conv2(spk1), 2), mem2)
            spk3, mem3 = self.lif3(self.fc1(spk2.view(len(x), -1)), mem3)
            out += spk3
        return out


def snntorch_sequential() -> nn.Module:
    """One time step per call, as snnTorch's tutorials with `init_hidden`."""
    options = {"beta": 0.9, "init_hidden": True}
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.MaxPool2d(2),
        snntorch.Leaky(**options),
        nn.Conv2d(6, 8, 5),
        nn.MaxPool2d(2),
        snntorch.Leaky(**options),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 10),
        snntorch.Leaky(**options, output=True),
    )


class NorseFrames(nn.Module):
    """Norse's cells in a loop over frames."""

    def __init__(self):
        super().__init__()
        self.fc1, self.lif = nn.Linear(20, 50), norse.LIFBoxCell(dt=0.004)
        self.fc2, self.iaf = nn.Linear(50, 5), norse.IAFCell()

    def forward(self, x: Tensor) -> Tensor:
        first = second = None
        spikes = []
        for frame in x:
            z, first = self.lif(self.fc1(frame), first)
            z, second = self.iaf(self.fc2(z), second)
            spikes.append(z)
        return torch.stack(spikes)


def norse_sequential() -> nn.Module:
    """Norse's container, which returns the states."""
    box = norse.LIFBoxCell
    return norse.SequentialState(nn.Linear(20, 50), box(dt=0.004), nn.Linear(50, 5), box(dt=0.01))


class SnnTorchSynaptic(nn.Module):
    """snnTorch's second-order neurons after a convolution and after a fully connected layer."""

    def __init__(self, time_steps=20, alpha=0.8, **options):
        super().__init__()
        self.time_steps = time_steps
        self.conv1, self.lif1 = nn.Conv2d(1, 6, 5), snntorch.Synaptic(alpha, 0.9, **options)
        self.fc1, self.lif2 = nn.Linear(6 * 12 * 12, 30), snntorch.Synaptic(0.6, 0.7, **options)
        self.fc2, self.lif3 = nn.Linear(30, 10), snntorch.Synaptic(alpha, 1.0, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (syn1, mem1), (syn2, mem2), (syn3, mem3) = (
            lif.reset_mem() for lif in (self.lif1, self.lif2, self.lif3)
        )
        spikes, membranes = [], []
        for _ in range(self.time_steps):
            spk1, syn1, mem1 = self.lif1(functional.max_pool2d(self.conv1(x), 2), syn1, mem1)
            spk2, syn2, mem2 = self.lif2(self.fc1(spk1.flatten(1)), syn2, mem2)
            spk3, syn3, mem3 = self.lif3(self.fc2(spk2), syn3, mem3)
            spikes.append(spk3)
            membranes.append(mem3)
        return torch.stack(spikes), torch.stack(membranes)


class NorseCuba(nn.Module):
    """Norse's default neurons, which have a synaptic current, in a loop over frames."""

    def __init__(self, **constants):
        super().__init__()
        p = norse.LIFParameters(**{k: torch.tensor(v) for k, v in constants.items()})
        self.conv1, self.lif1 = nn.Conv2d(2, 6, 3, padding=1), norse.LIFCell(p)
        self.conv2, self.lif2 = nn.Conv2d(6, 8, 3), norse.LIFCell(p)
        self.fc1, self.lif3 = nn.Linear(8 * 4 * 4, 5), norse.LIFCell()

    def forward(self, x: Tensor) -> Tensor:
        first = second = third = None
        spikes = []
        for frame in x:
            z, first = self.lif1(functional.avg_pool2d(self.conv1(frame), 2), first)
            z, second = self.lif2(self.conv2(z), second)
            z, third = self.lif3(self.fc1(z.flatten(1)), third)
            spikes.append(z)
        return torch.stack(spikes)


def norse_sequence() -> nn.Module:
    """Norse's neurons that run all time steps in one call."""
    return norse.SequentialState(nn.Linear(20, 50), norse.LIF(), nn.Linear(50, 5), norse.LIF())
