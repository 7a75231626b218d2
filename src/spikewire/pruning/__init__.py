"""The pruning contract: what a method author imports."""
