"""The names of the files in a run directory."""

CONFIG, ENV, METRICS, TRACES = "config.toml", "env.json", "metrics.jsonl", "traces.npz"
SNAPSHOTS = "snapshots.npz"
CHECKPOINT, PREVIOUS, MODEL = "checkpoint.pt", "checkpoint.prev.pt", "model.safetensors"
LOCK, TENSORBOARD = ".lock", "tensorboard"
WRITTEN = (CONFIG, ENV, METRICS, TRACES, SNAPSHOTS, CHECKPOINT, MODEL)  # atomically
