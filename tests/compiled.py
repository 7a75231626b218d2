"""Compiled C files, and the outputs of the runtime for the same inputs."""

import subprocess

import numpy as np
import torch

from spikewire.formats import c, packed
from spikewire.formats.network import Network
from spikewire.runtime import Runtime

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic")
MAIN = """
#include "network.c"
#include <stdio.h>

int main(void)
{{
    static float inputs[{inputs}];
    float scores[{classes}];
    while (fread(inputs, sizeof(float), {inputs}, stdin) == {inputs}) {{
        spikewire_predict_real(inputs, scores);
        fwrite(scores, sizeof(float), {classes}, stdout);
    }}
    return 0;
}}
"""


MAIN_OVER_TIME = """
#include "network.c"
#include <stdio.h>

int main(void)
{{
    static float inputs[{inputs}];
    float scores[{classes}];
    while (!feof(stdin)) {{
        spikewire_reset();
        for (int step = 0; step < {steps}; step++) {{
            if (fread(inputs, sizeof(float), {inputs}, stdin) != {inputs})
                return 0;
            int found = spikewire_step(inputs, scores);
            fwrite(scores, sizeof(float), {classes}, stdout);
            for (int k = 0; k < {classes}; k++)
                if (scores[k] > scores[found])
                    return 1;
        }}
    }}
    return 0;
}}
"""


def compile_c(folder, *words, compiler="gcc"):
    subprocess.run([compiler, *STRICT, *words], cwd=folder, check=True, timeout=120)


def run_c(network: Network, images, folder, values, compiler="gcc", before=(), flags=()):
    """Return the scores that the compiled file gives for real inputs."""
    memory = c.write(network, folder / "network.c", values)
    sizes = {"inputs": images[0].numel(), "classes": len(network.classes)}
    (folder / "main.c").write_text(MAIN.format(**sizes))
    compile_c(folder, "main.c", "-o", "main", *flags, compiler=compiler)
    program = [*before, str(folder / "main")]
    data = images.numpy().tobytes()
    out = subprocess.run(program, input=data, capture_output=True, check=True, timeout=300).stdout
    scores = np.frombuffer(out, np.float32).reshape(len(images), -1)
    return torch.from_numpy(scores.copy()), memory


def measure_memory(folder) -> tuple[int, int]:
    """Return the bytes of constants with code, and those of static variables."""
    compile_c(folder, "-c", "network.c", "-o", "network.o")
    words = ["size", str(folder / "network.o")]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    text, data, bss = map(int, out.splitlines()[1].split()[:3])
    return text + data, bss


def run_over_time(network: Network, frames, folder, values):
    """Return the scores of the compiled file after every time step of samples over time."""
    c.write(network, folder / "network.c", values)
    steps, samples, inputs = frames.flatten(2).shape
    sizes = {"steps": steps, "inputs": inputs, "classes": len(network.classes)}
    (folder / "main.c").write_text(MAIN_OVER_TIME.format(**sizes))
    compile_c(folder, "main.c", "-o", "main")
    data = frames.transpose(0, 1).contiguous().numpy().tobytes()
    out = subprocess.run([folder / "main"], input=data, capture_output=True, check=True, timeout=60)
    scores = np.frombuffer(out.stdout, np.float32).reshape(samples, steps, -1)
    return torch.from_numpy(scores.copy()).transpose(0, 1)


def means_over_time(network: Network, frames, values):
    """Return the means of the outputs of the runtime over the time steps so far."""
    outputs = Runtime(packed.quantise(network, values), exact=True).run_frames(frames)
    return outputs.cumsum(0) / torch.arange(1, len(frames) + 1)[:, None, None]


def runtime_scores(network: Network, images, values):
    return Runtime(packed.quantise(network, values), exact=True)(images).mean(0)
