"""Calls of layers: time steps of one use, or several uses."""

from spikingjelly.activation_based import neuron as spikingjelly
from torch import nn

from spikewire.nn.calls import Calls, over_time
from spikewire.nn.neurons import LIF


def test_a_loop_over_time_is_one_use_with_a_record_per_step():
    calls, neurons = Calls(), nn.Identity()
    for step in range(3):
        calls.add("fc", step)
        calls.fire(neurons)
    assert calls.uses("fc") == [[0, 1, 2]]


def test_two_calls_per_time_step_are_two_uses():
    calls, first, second = Calls(), nn.Identity(), nn.Identity()
    for step in range(3):
        for use, neurons in (("a", first), ("b", second)):
            calls.add("fc", f"{use}{step}")
            calls.fire(neurons)
    assert calls.uses("fc") == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]


def test_calls_before_neurons_that_see_all_time_steps_are_uses():
    calls, neurons = Calls(), LIF()
    for use in range(2):
        calls.add("fc", use)
        calls.fire(neurons)
    assert calls.uses("fc") == [[0], [1]]


def test_without_known_neurons_all_calls_are_time_steps():
    calls = Calls()
    assert (bool(calls), calls.uses("fc")) == (False, [])
    calls.add("fc", 0)
    calls.add("fc", 1)
    assert (bool(calls), calls.uses("fc")) == (True, [[0, 1]])
    calls.clear()
    assert not calls


def test_which_neurons_see_all_time_steps():
    assert over_time(LIF())
    assert over_time(spikingjelly.LIFNode(step_mode="m"))
    assert not over_time(spikingjelly.LIFNode(step_mode="s"))
