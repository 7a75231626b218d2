"""Every way of pruning, one file each; file name = registry key = CLI value = test suffix."""

from rewire.method import Method
from rewire.methods.admm import Admm
from rewire.methods.budget import Budget
from rewire.methods.deepr import DeepR
from rewire.methods.dense import Dense
from rewire.methods.gradr import GradR
from rewire.methods.lottery import Lottery
from rewire.methods.magnitude import Magnitude
from rewire.methods.rigl import RigL
from rewire.methods.set import Set
from rewire.methods.softdeepr import SoftDeepR
from rewire.methods.stds import Stds
from rewire.methods.upr import Upr

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
