"""The package on systems without POSIX: every module can be imported, and a run trains and exports.

What Windows lacks is hidden in a process of its own. This is not Windows: paths, file locks and the
compiler stay those of this machine.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios")

HIDE = """
import filelock, matplotlib.figure, numpy.random, os, pkgutil, signal, socket, sys
import rich.live, rich.progress, safetensors.torch, torch._dynamo, torch.onnx, torch.utils.data
import subprocess, multiprocessing.connection, tempfile  # what is not ours stays as it is

for name in {modules}:
    sys.modules[name] = None
for module, names in {{
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW fork getuid geteuid killpg posix_fallocate "
    "sched_getaffinity setsid statvfs sysconf uname waitid P_PID WEXITED WNOWAIT",
    signal: "SIGHUP SIGKILL SIGUSR1 SIGXFSZ SIGALRM pthread_sigmask pause setitimer",
    socket: "AF_UNIX SOCK_SEQPACKET send_fds recv_fds",
}}.items():
    for name in names.split():
        delattr(module, name)
sys.platform = "win32"
"""
IMPORT = """
import spikewire
optional = ("spikewire.kernels.", "spikewire.integrations.")  # need Triton, Lightning ...
for module in pkgutil.walk_packages(spikewire.__path__, "spikewire."):
    if not module.name.startswith(optional) and not module.name.endswith("._kernels"):
        __import__(module.name)
"""
RUN = """
from spikewire.cli import main
for words in (
    ["train", "--epochs=1", "--time-steps=2", "--method=budget", "--connectivity=0.1", "--out=run"],
    ["export", "run"],
    ["predict", "run/model.packed.safetensors", "--input=digits"],
    ["frontier", "--methods=dense", "--seeds=1", "--epochs=1", "--time-steps=2", "--out=all"],
    ["report", "run", "-o", "page.html"],
):
    code = main(words)
    assert code == 0, (words, code)
"""


def test_without_posix_everything_is_imported_and_a_run_is_trained_and_exported(tmp_path):
    script = HIDE.format(modules=MODULES) + IMPORT + RUN
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "all/digits-dense-seed0/model.safetensors").is_file()


def module_level(tree: ast.Module) -> set[str]:
    """Return the modules that are imported when a file is, whatever it is used for."""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    return names | {x.name for node in imports if isinstance(node, ast.Import) for x in node.names}


@pytest.mark.parametrize("folder", ["src/spikewire", "examples", "benchmarks"])
def test_no_file_needs_posix_to_be_imported(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        assert not module_level(ast.parse(path.read_text("utf-8"))) & {*MODULES}, path
