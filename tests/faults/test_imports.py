"""The package can be imported where modules that only POSIX systems have are missing."""

import subprocess
import sys

PROGRAM = """
import sys
from importlib import import_module
from pathlib import Path

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None  # an import of it raises ImportError
import spikewire

root = Path(spikewire.__file__).parent
files = [path.relative_to(root.parent) for path in root.rglob("*.py") if path.stem != "__main__"]
files = [path for path in files if "integrations" not in path.parts]  # they need other libraries
for path in files:
    import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
print(len(files))
"""


def test_every_module_can_be_imported_without_posix_modules():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80


def test_a_module_that_needs_them_is_detected():
    broken = PROGRAM.replace("import spikewire\n", "import spikewire\nimport fcntl\n", 1)
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True)
    assert "import of fcntl halted" in done.stderr
