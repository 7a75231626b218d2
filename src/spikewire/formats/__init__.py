"""Finished networks for other places: a packed file, NIR, connection lists.

The parts are imported where they are used: `structure` holds the records all of them read.
"""
