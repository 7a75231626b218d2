"""What a weight costs in the unit that is paid for, measured while the network trains.

`meter` is what all units share. `synapses`, `synops` and `filesize` are one unit each; `positions`,
`uses`, `passes` and `spacing` count for them what a forward pass does with a weight.
"""
