"""Sweeps over data set, method, connectivity and seed."""
