"""The names of the files in a run directory."""

CONFIG, ENV, METRICS, TRACES = "config.toml", "env.json", "metrics.jsonl", "traces.npz"
CHECKPOINT, PREVIOUS, MODEL = "checkpoint.pt", "checkpoint.prev.pt", "model.safetensors"
LOCK, TENSORBOARD = ".lock", "tensorboard"
WRITTEN = (CONFIG, ENV, METRICS, TRACES, CHECKPOINT, MODEL)  # atomically
