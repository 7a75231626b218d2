"""Trained networks in the package: packed files, each with a card, named ``zoo:NAME``.

`resolve` turns such a name into the path of the packed file, wherever one is accepted.
"""

from spikewire.zoo.cards import FOLDER, Card, card, cards, network_path, resolve

__all__ = ["FOLDER", "Card", "card", "cards", "network_path", "resolve"]
