"""Constants of neuron modules of spikewire, SpikingJelly, snnTorch and Norse.

Modules are recognised by the name of their class and package, so that no library is imported. A
neuron whose equation is not one of `UPDATES` with one of `RESETS` is refused with a reason.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.formats.neuron import Neuron
from spikewire.nn import neurons
from spikewire.nn.adaptive import AdaptiveRecurrent
from spikewire.nn.crossings import Encoder
from spikewire.nn.delays import DelayedLinear
from spikewire.nn.encoding import Bernoulli
from spikewire.nn.recurrent import LastSteps, LeakyIntegrator, Recurrent

LIBRARIES = ("spikingjelly", "snntorch", "norse")
STATEFUL = {"MemoryModule", "NonSpikingBaseNode", "SpikingNeuron", "SNNCell", "SNN"}
STATEFUL |= {"SNNRecurrentCell", "SNNRecurrent", "LIFRecurrentCell", "LIFRecurrent"}
IN_NO_FORMAT: dict[type[nn.Module], str] = {
    Encoder: "spike encoder",
    Bernoulli: "spike encoder",
    AdaptiveRecurrent: "recurrent layer with adaptation",
    DelayedLinear: "synapses with delays",
    LeakyIntegrator: "leaky readout",
    LastSteps: "output of the last time steps",
}


class NeuronCall(NamedTuple):
    """How a module fires.

    Args:
        neuron: The constants.
        multi_step: Whether a call runs all time steps.
        keeps_state: Whether the membrane potential is kept in the module from call to call.
        returns_membrane: Whether a call returns the membrane potential before the reset.
        states: What the tensors of the state are, in the order of arguments and outputs:
            ``"voltage"`` or ``"current"``, the synaptic current.
        synapses: Name and weight of the synapses from the neurons to themselves, through which
            they receive their own spikes of the time step before; None for none.
    """

    neuron: Neuron
    multi_step: bool
    keeps_state: bool = True
    returns_membrane: bool = False
    states: tuple[str, ...] = ("voltage",)
    synapses: tuple[str, Tensor] | None = None


def read_neuron(name: str, module: nn.Module) -> NeuronCall | None:
    """Return the constants of a neuron module; None for a module that is no neuron.

    Args:
        name: Name of the module, for the message of a refusal.
        module: Any module.

    Returns:
        The constants, and whether one call runs all time steps.

    Raises:
        SpikewireError: If the module is a neuron that the record of a network cannot express.
    """
    if isinstance(module, neurons.Neuron):
        constants = (module.tau, module.threshold, module.rest, module.reset)
        update = "divide" if module.rate is None else "multiply"
        return NeuronCall(Neuron(*constants, update), True, keeps_state=False)
    if isinstance(module, Recurrent):
        constants, weight = module.constants, module.synapses.weight
        neuron = Neuron(constants.tau, constants.threshold, constants.rest, constants.reset)
        synapses = (f"{name}.synapses", weight)
        return NeuronCall(neuron, True, keeps_state=False, synapses=synapses)
    kind = type(module)
    for refused, what in IN_NO_FORMAT.items():
        if isinstance(module, refused):
            raise SpikewireError(f"{name}: {kind.__name__} is a {what}, which no format has")
    reader = READERS.get((kind.__module__.split(".")[0], kind.__name__))
    if reader is not None:
        try:
            return reader(module)
        except SpikewireError as error:
            raise SpikewireError(f"{name}: {kind.__name__}: {error}") from None
    bases = ((base.__module__.split(".")[0], base.__name__) for base in kind.__mro__)
    if any(library in LIBRARIES and base in STATEFUL for library, base in bases):
        known = sorted({word for _, word in READERS})
        raise SpikewireError(
            f"{name}: {kind.__name__} is not supported; neurons that are: {', '.join(known)}"
        )
    return None


def read_scalar(value: Any, field: str) -> float:
    """Return a number, or the only value of a tensor, as float32 rounds it if it is a tensor."""
    if not isinstance(value, Tensor):
        return float(value)
    distinct = value.detach().flatten().unique()
    if len(distinct) != 1:
        raise SpikewireError(f"{field} has {len(distinct)} values; it must be one per layer")
    return float(distinct[0])


def refuse(condition: bool, reason: str) -> None:
    """Raise a refusal where `condition` holds; the caller adds name and class."""
    if condition:
        raise SpikewireError(f"{reason} is not supported")


# ---------------------------------------------------------------------- SpikingJelly


def _read_spikingjelly(module: Any, tau: float | None, update: str) -> NeuronCall:
    """``v + (x - (v - v_reset)) / tau``; without `decay_input`, ``v - (v - v_reset) / tau + x``."""
    refuse(getattr(module, "_neuron_precision", None) is not None, "a neuron precision")
    spiking = getattr(module.surrogate_function, "spiking", True)
    refuse(not spiking, "a surrogate function without spikes")
    soft = module.v_reset is None
    threshold, rest = float(module.v_threshold), 0.0 if soft else float(module.v_reset)
    reset = "soft" if soft else "hard"
    return NeuronCall(Neuron(tau, threshold, rest, reset, update), module.step_mode == "m")


def _read_lif_node(module: Any) -> NeuronCall:
    update = "divide" if module.decay_input else "divide then add"
    return _read_spikingjelly(module, float(module.tau), update)


def _read_parametric_lif_node(module: Any) -> NeuronCall:
    """Return the constants; the factor ``sigmoid(w)`` is ``1 / tau``."""
    update = "multiply" if module.decay_input else "multiply then add"
    return _read_spikingjelly(module, 1 / read_scalar(module.w.sigmoid(), "w"), update)


def _read_if_node(module: Any) -> NeuronCall:
    return _read_spikingjelly(module, None, "divide")


def _read_cuba_lif_node(module: Any) -> NeuronCall:
    """``v_decay v + c`` of ``c = c_decay c + x``; the leak is towards 0."""
    refuse(module.v_reset not in (None, 0), f"v_reset {module.v_reset} other than 0 or None")
    refuse(not 0 <= module.c_decay < 1, f"c_decay {module.c_decay:g} outside [0, 1)")
    refuse(not 0 <= module.v_decay <= 1, f"v_decay {module.v_decay:g} outside [0, 1]")
    tau = None if module.v_decay == 1 else 1 / (1 - module.v_decay)
    call = _read_spikingjelly(module, tau, "decay")
    return call._replace(neuron=call.neuron._replace(current_decay=float(module.c_decay)))


# ---------------------------------------------------------------------- snnTorch


def _read_leaky(module: Any) -> NeuronCall:
    """``beta mem + x``, minus the threshold where the neuron fired one step before; fires above.

    The reset to zero comes before the next leak, so its spikes are those of a hard reset.
    """
    refuse(bool(module.inhibition), "inhibition")
    refuse(bool(module.state_quant), "state_quant")
    refuse(read_scalar(module.graded_spikes_factor, "graded_spikes_factor") != 1, "graded spikes")
    mechanism = module.reset_mechanism
    refuse(mechanism == "none", "reset_mechanism='none'")
    refuse(mechanism == "subtract" and not module.reset_delay, "reset_delay=False")
    beta = _read_decay(module, "beta")
    tau = None if beta == 1 else 1 / (1 - beta)
    reset = "hard" if mechanism == "zero" else "delayed soft"
    threshold = read_scalar(module.threshold, "threshold")
    neuron = Neuron(tau, threshold, 0.0, reset, "decay", strict=True)
    return NeuronCall(neuron, False, returns_membrane=bool(module.reset_delay))


def _read_synaptic(module: Any) -> NeuronCall:
    """`Leaky` of ``syn = alpha syn + x``; its delayed reset to zero ignores what arrives then."""
    alpha, call = _read_decay(module, "alpha"), _read_leaky(module)
    refuse(alpha == 1, "alpha=1, a synaptic current without decay,")
    neuron = call.neuron._replace(current_decay=alpha)
    if neuron.reset == "hard" and module.reset_delay:
        neuron = neuron._replace(reset="delayed hard")
    return call._replace(neuron=neuron, states=("current", "voltage"))


def _read_decay(module: Any, field: str) -> float:
    """Return ``beta`` or ``alpha``, which snnTorch limits to [0, 1]."""
    return min(max(read_scalar(getattr(module, field), field), 0.0), 1.0)


# ---------------------------------------------------------------------- Norse


def _read_norse_reset(module: Any, rest: float) -> float:
    reset = read_scalar(module.p.v_reset, "v_reset")
    refuse(reset != rest, f"v_reset {reset:g} other than v_leak {rest:g}")
    method = getattr(getattr(module.p, "reset_method", None), "__name__", "reset_value")
    refuse(method != "reset_value", f"reset method {method}")
    return read_scalar(module.p.v_th, "v_th")


def _read_norse_lif(multi_step: bool, box: bool) -> Callable[[Any], NeuronCall]:
    """``v + dt tau_mem_inv (v_leak - v + i)``, where i is x, or decays by ``dt tau_syn_inv i``."""

    def read(module: Any) -> NeuronCall:
        p, dt = module.p, module.dt
        lost = 1.0 if box else read_scalar(torch.as_tensor(dt * p.tau_syn_inv), "tau_syn_inv")
        refuse(not 0 < lost <= 1, f"dt * tau_syn_inv of {lost:g}")
        rest = read_scalar(p.v_leak, "v_leak")
        rate = read_scalar(torch.as_tensor(dt * p.tau_mem_inv), "tau_mem_inv")
        refuse(not 0 < rate <= 1, f"dt * tau_mem_inv of {rate:g}")
        threshold = _read_norse_reset(module, rest)
        constants = (1 / rate, threshold, rest, "hard", "multiply", True, 1 - lost)
        states = ("voltage",) if box else ("voltage", "current")
        return NeuronCall(Neuron(*constants), multi_step, keeps_state=False, states=states)

    return read


def _read_norse_iaf(multi_step: bool) -> Callable[[Any], NeuronCall]:
    def read(module: Any) -> NeuronCall:
        neuron = Neuron(None, _read_norse_reset(module, 0.0), 0.0, "hard", strict=True)
        return NeuronCall(neuron, multi_step, keeps_state=False)

    return read


READERS: dict[tuple[str, str], Callable[[Any], NeuronCall]] = {
    ("spikingjelly", "LIFNode"): _read_lif_node,
    ("spikingjelly", "ParametricLIFNode"): _read_parametric_lif_node,
    ("spikingjelly", "IFNode"): _read_if_node,
    ("spikingjelly", "CUBALIFNode"): _read_cuba_lif_node,
    ("snntorch", "Leaky"): _read_leaky,
    ("snntorch", "Synaptic"): _read_synaptic,
    ("norse", "LIFBoxCell"): _read_norse_lif(False, box=True),
    ("norse", "LIFCell"): _read_norse_lif(False, box=False),
    ("norse", "LIF"): _read_norse_lif(True, box=False),
    ("norse", "IAFCell"): _read_norse_iaf(False),
    ("norse", "IAF"): _read_norse_iaf(True),
}
