"""Every way of pruning, one file each; file name = registry key = CLI value = test suffix."""

from spikewire.methods.admm import Admm
from spikewire.methods.budget import Budget
from spikewire.methods.deepr import DeepR
from spikewire.methods.dense import Dense
from spikewire.methods.gradr import GradR
from spikewire.methods.lottery import Lottery
from spikewire.methods.magnitude import Magnitude
from spikewire.methods.rigl import RigL
from spikewire.methods.set import Set
from spikewire.methods.softdeepr import SoftDeepR
from spikewire.methods.stds import Stds
from spikewire.methods.upr import Upr
from spikewire.pruning.method import Method

_ALL = (
    Dense,
    GradR,
    Budget,
    DeepR,
    SoftDeepR,
    Magnitude,
    Admm,
    Lottery,
    Set,
    RigL,
    Stds,
    Upr,
)

METHODS: dict[str, type[Method]] = {method.name: method for method in _ALL}
