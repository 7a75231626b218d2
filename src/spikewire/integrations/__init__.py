"""Pruning inside other people's training loops: Lightning's and Hugging Face's `Trainer`.

Each module imports its package, which is optional; Accelerate and Fabric need no module: attach as
in a loop of your own, before or after `prepare` or `setup`.
"""
