"""The methods, one file each; file name = registry key = CLI value = suffix of the test file.

Importing a method here registers it in `METHODS`.
"""

from spikewire.methods.admm import ADMM as ADMM
from spikewire.methods.aptn import APTN as APTN
from spikewire.methods.budget import Budget as Budget
from spikewire.methods.deepr import DeepR as DeepR
from spikewire.methods.dense import Dense as Dense
from spikewire.methods.gated import Gated as Gated
from spikewire.methods.gradr import GradR as GradR
from spikewire.methods.lottery import Lottery as Lottery
from spikewire.methods.magnitude import Magnitude as Magnitude
from spikewire.methods.rigl import RigL as RigL
from spikewire.methods.sampling import SynapticSampling as SynapticSampling
from spikewire.methods.set import SET as SET
from spikewire.methods.similarity import Similarity as Similarity
from spikewire.methods.soft import SoftPruning as SoftPruning
from spikewire.methods.softdeepr import SoftDeepR as SoftDeepR
from spikewire.methods.stds import STDS as STDS
from spikewire.methods.upr import UPR as UPR
from spikewire.pruning import Method, document

METHODS: dict[str, type[Method]] = {}
for _kind in list(globals().values()):
    if isinstance(_kind, type) and issubclass(_kind, Method) and _kind is not Method:
        if not _kind.name or _kind.name in METHODS:
            raise TypeError(f"{_kind.__name__}: needs a name of its own, not {_kind.name!r}")
        document(_kind)
        METHODS[_kind.name] = _kind
