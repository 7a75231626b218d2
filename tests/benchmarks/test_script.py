"""benchmarks/script.py: a mistake in an argument of a benchmark is one line."""

import re
import sys
from pathlib import Path

import imagenet_cost
import leaderboard
import pytest
import script
import time_to_accuracy
from gpu_bench import require_measurable
from refusal import refused

from spikewire.errors import SpikewireError

ROOT = Path(__file__).parents[2]


def run(main, *words):
    """Run a script with these arguments as a user does; return why it ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{main.__module__}.py", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            script.run_script(main)
    return str(ended.value)


@pytest.mark.parametrize(
    ("main", "words", "expected"),
    [
        (leaderboard.main, ["--docs", "no.md", "--out", "."], "no.md: cannot be read: No such"),
        (leaderboard.main, ["--docs", "page.md", "--out", "no"], "--out: no: there is no such"),
        (leaderboard.main, ["--summary", "--out", "no"], "--out: no: there is no such folder"),
        (
            leaderboard.main,
            ["--summary", "--out", "bad"],
            "budget-0.0223.json: is damaged (Exp",
        ),
        (leaderboard.main, ["--summary", "--out", "other"], "is damaged (it has no 'preset')"),
        (leaderboard.main, ["--summary", "--out", ".", "--smmary"], "flags: '--smmary' is"),
        (time_to_accuracy.main, ["--summary", "--out", "no"], "--out: no: there is no such folder"),
        (time_to_accuracy.main, ["--summary", "--out", "bad"], "is damaged (Expecting value"),
        (time_to_accuracy.main, ["--summary", "--out", "other"], "it has no 'accuracy'"),
        (imagenet_cost.main, ["no.json"], "no.json: cannot be read: No such file or directory"),
        (imagenet_cost.main, ["bad/budget-0.0223.json"], "is damaged (Expecting value"),
        (imagenet_cost.main, ["other/budget-0.0223.json"], "is damaged (it has no 'networks')"),
        (
            imagenet_cost.main,
            [ROOT / "results" / "gpu_imagenet.json", "--docs", "no.md"],
            "no.md: cannot be read: No such file or directory",
        ),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_one_line(
    main, words, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("<!-- leaderboard -->\nkept\n<!-- end of leaderboard -->\n")
    for name, text in (("bad", '{"x": '), ("other", '{"x": 1}')):
        Path(name).mkdir()
        Path(name, "budget-0.0223.json").write_text(text)
    reason = run(main, *words)
    assert reason.startswith(f"{main.__module__}: ")
    assert expected in reason
    assert "\n" not in reason
    assert "kept" in Path("page.md").read_text()


def test_a_program_that_is_missing_is_one_line():
    def main():
        raise FileNotFoundError(2, "No such file or directory", "nocc")

    assert re.search("nocc: No such file or directory$", run(main))


def test_an_error_that_is_not_the_users_keeps_its_traceback():
    def main():
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        script.run_script(main)


def test_words_of_a_list_and_the_folder_of_the_results_are_checked_before_measuring(tmp_path):
    assert script.words_of_list("--sections", "a,b", {"a": 1, "b": 2}) == ["a", "b"]
    refused(lambda: script.words_of_list("--sections", "a,eagr", ["a", "eager"]), "mean 'eager'")
    require_measurable(True, tmp_path / "out.json")
    with pytest.raises(SpikewireError, match="--out: .*no: there is no such folder"):
        require_measurable(True, tmp_path / "no" / "out.json")
