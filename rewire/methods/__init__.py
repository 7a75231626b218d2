"""Every way of pruning, one file each; file name = registry key = CLI value = test suffix."""

from rewire.method import Method
from rewire.methods.deepr import DeepR
from rewire.methods.dense import Dense
from rewire.methods.gradr import GradR
from rewire.methods.softdeepr import SoftDeepR

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Dense, GradR, DeepR, SoftDeepR)
}
