"""The choice between kernels and plain torch: refusals, logging, compilation, imports."""

import logging
import subprocess
import sys

import pytest
import torch
from comparison import normal
from torch import Tensor

from spikewire import kernels
from spikewire.errors import SpikewireError
from spikewire.kernels import choice
from spikewire.nn.neurons import LIF, lif


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_double_and_long_runs_take_plain_torch():
    assert not kernels.fusible(normal(4, 3).double(), 4)
    assert not kernels.fusible(normal(33, 3), 33)
    assert not kernels.fusible(normal(0, 3), 16)
    assert kernels.fusible(normal(32, 3), 32)


def test_auto_is_triton_on_cuda_and_torch_elsewhere():
    assert kernels.use("auto") == "triton"
    assert [choice.fused(device) for device in ("cuda", "cpu", "meta")] == [True, False, False]
    kernels.use("torch")
    assert not choice.fused("cuda")
    kernels.use("triton")
    assert choice.fused("cuda")


def test_unknown_path():
    with pytest.raises(SpikewireError, match="did you mean 'triton'"):
        kernels.use("tritom")


@pytest.mark.parametrize(("interpret", "refused"), [("0", True), ("1", False)])
def test_triton_refuses_a_cpu_without_its_interpreter(interpret, refused, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    kernels.use("triton")
    if refused:
        with pytest.raises(SpikewireError, match="needs CUDA tensors or TRITON_INTERPRET=1"):
            kernels.fusible(torch.rand(4, 3), 4)
        with pytest.raises(SpikewireError, match="not cpu"):
            kernels.same_layout(torch.rand(4, 3))
    else:
        assert kernels.fusible(torch.rand(4, 3), 4)


def test_the_path_is_logged_once(caplog):
    choice._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="spikewire.kernels"):
        for _ in range(3):
            lif(normal(2, 3))
    assert [x.message for x in caplog.records] == [
        "neurons and updates run as fused Triton kernels (requested)"
    ]


# Dynamo itself makes an instance of the autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_neurons_take_the_chosen_path_without_graph_breaks():
    """The operators in the graph show the path; a change of it compiles again."""
    graphs: list[set[str]] = []

    def record(graph: torch.fx.GraphModule, _: list[Tensor]):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    neuron = LIF(tau=2.5)
    compiled = torch.compile(neuron, backend=record, fullgraph=True)
    x = normal(4, 7) * 2
    results = []
    for path in ("triton", "torch", "triton"):
        kernels.use(path)
        results += [compiled(x), compiled(x)]
    assert all(torch.equal(result, results[0]) for result in results)
    assert ["spikewire.fire.default" in names for names in graphs] == [True, False]


def test_without_triton_everything_works():
    done = run_python(
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from spikewire import kernels; from spikewire.nn import models\n"
        "print(models.build('digits-mlp')(torch.rand(2, 1, 8, 8)).shape)\n"
        "kernels.use('triton')"
    )
    assert "torch.Size([8, 2, 10])" in done.stdout
    assert done.stderr.strip().endswith("'triton' is not installed; allowed here: auto, torch")


@pytest.mark.parametrize(
    "code",
    [
        "import spikewire.nn, spikewire.kernels, spikewire.kernels.ops",
        "import spikewire.methods, spikewire.nn.models",
        "import torch, spikewire.nn.models as m; m.build('digits-mlp')(torch.rand(2, 1, 8, 8))",
    ],
)
def test_dynamo_is_not_imported(code):
    """It takes a second, which only torch.compile should cost."""
    done = run_python(f"{code}\nimport sys; print('torch._dynamo' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr
