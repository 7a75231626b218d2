"""Recordings of events: their formats, and their division into frames."""

from spikewire.data.events.frames import FRAMES, to_frames
from spikewire.data.events.recording import Events, Recordings, format_errors

__all__ = ["FRAMES", "Events", "Recordings", "format_errors", "to_frames"]
