"""Spiking neural networks that grow their own sparse wiring."""

__version__ = "0.1.0"
