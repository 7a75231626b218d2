"""Names in files and messages cannot control the terminal."""

import numpy as np
import pytest
from networks import conv_net

from spikewire.cli.show import print_values
from spikewire.formats import packed
from spikewire.formats.trace import trace_model


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_escapes_in_class_names_do_not_reach_the_terminal(tmp_path, call, flags):
    names = tuple(f"\x1b]0;{number}\x07\u202e" for number in range(3))
    packed.write(trace_model(conv_net(), classes=names), tmp_path / "net")
    np.save(tmp_path / "x.npy", np.zeros((2, 2, 9, 21), np.float32))
    code, out, err = call("predict", tmp_path / "net", "--input", tmp_path / "x.npy", *flags)
    assert (code, err) == (0, "")
    assert all(line.isprintable() for line in out.splitlines())
    assert len(out.splitlines()) == 2


def test_escapes_in_a_path_or_table_do_not_reach_the_terminal(tmp_path, call, capsys):
    code, out, err = call("predict", f"{tmp_path}/\x1b[2J", "--input", "x.npy")
    assert (code, out) == (2, "")
    assert r"\x1b[2J: does not exist" in err
    print_values({"\x1b[31m": "\x9b[bold]"})
    shown = capsys.readouterr().out
    assert r"\x1b[31m" in shown
    assert r"\x9b[bold]" in shown
