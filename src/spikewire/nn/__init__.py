"""Spiking networks: neurons, layers, models, losses."""
