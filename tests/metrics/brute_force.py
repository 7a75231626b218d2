"""Pruned models, spikes, and slow counts of operations and links, one by one."""

import torch


def prune_(model, connectivity=0.3, seed=0):
    """Zero weights at random; return the masks."""
    generator = torch.Generator().manual_seed(seed + 1000)  # not the seed of the weights
    masks = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            mask = torch.rand(parameter.shape, generator=generator) < connectivity
            parameter.data.mul_(mask)
            masks[name] = mask
    return masks


def spikes(*shape, rate=0.3, seed=1):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < rate).float()


def brute_force_linear(x, mask):
    """Count one operation for every (spike, surviving weight) pair, one by one."""
    return sum(
        int(mask[o, i])
        for frame in x
        for i in range(x.shape[1])
        if frame[i]
        for o in range(len(mask))
    )


def brute_force_conv(x, mask, conv):
    """Walk over every output position and kernel position; padding holds no spike."""
    (stride, _), (pad, _), (dilation, _) = conv.stride, conv.padding, conv.dilation
    out_per, in_per = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    height = (x.shape[2] + 2 * pad - dilation * (conv.kernel_size[0] - 1) - 1) // stride + 1
    total = 0
    for frame in x:
        for o in range(conv.out_channels):
            for y in range(height):
                for z in range(height):
                    for c in range(in_per):
                        for i in range(conv.kernel_size[0]):
                            for j in range(conv.kernel_size[1]):
                                row = y * stride + i * dilation - pad
                                column = z * stride + j * dilation - pad
                                inside = 0 <= row < x.shape[2] and 0 <= column < x.shape[3]
                                channel = o // out_per * in_per + c
                                if inside and frame[channel, row, column]:
                                    total += int(mask[o, c, i, j])
    return total


def brute_force_links(weights, masks):
    """Search an MLP: a link is alive if some path from input to output uses it."""
    sizes = [masks[weights[0]].shape[1], *(masks[w].shape[0] for w in weights)]
    sources = [set(range(sizes[0]))]
    for w in weights:
        sources.append(
            {o for o in range(masks[w].shape[0]) if any(masks[w][o, i] for i in sources[-1])}
        )
    sinks = [set(range(sizes[-1]))]
    for w in reversed(weights):
        sinks.insert(
            0, {i for i in range(masks[w].shape[1]) if any(masks[w][o, i] for o in sinks[0])}
        )
    return [
        sum(int(masks[w][o, i]) for i in sources[k] for o in sinks[k + 1])
        for k, w in enumerate(weights)
    ]


def search_synapses(model, masks, shape):
    """Follow every synapse of a sequence of layers one by one, from the input and from the output.

    Returns the synapses per layer that are present, that start at a neuron reached from the input
    (UPR's definition), and that also end at a neuron from which the output is reached.
    """
    neurons = [(c, y, x) for c in range(shape[0]) for y in range(shape[1]) for x in range(shape[2])]
    start = [("input", n) for n in neurons]
    steps, names, here = [], [], "input"
    for name, layer in model.named_children():
        kind = type(layer).__name__
        if kind in ("Conv2d", "Linear", "MaxPool2d"):
            edges, neurons = EDGES[kind](neurons, masks.get(f"{name}.weight"))
            steps.append([((here, a), (name, b)) for a, b in edges])
            names.append(name if kind != "MaxPool2d" else None)
            here = name
    reached, leading = set(start), {(here, n) for n in neurons}
    for edges in steps:
        reached |= {b for a, b in edges if a in reached}
    for edges in reversed(steps):
        leading |= {a for a, b in edges if b in leading}
    synaptic = [edges for edges, name in zip(steps, names, strict=True) if name]
    return (
        [len(edges) for edges in synaptic],
        [sum(a in reached for a, _ in edges) for edges in synaptic],
        [sum(a in reached and b in leading for a, b in edges) for edges in synaptic],
    )


def conv_edges(neurons, mask):
    """Return the synapses of a 3x3 convolution with padding 1, and its outputs."""
    known = set(neurons)
    side = max(y for _, y, _ in neurons) + 1
    out = [(o, y, x) for o in range(len(mask)) for y in range(side) for x in range(side)]
    edges = []
    for o, c, i, j in mask.nonzero().tolist():
        for y in range(side):
            for x in range(side):
                source = (c, y + i - 1, x + j - 1)
                if source in known:
                    edges.append((source, (o, y, x)))
    return edges, out


def linear_edges(neurons, mask):
    """Return the synapses of a linear layer on flattened neurons, and its outputs."""
    return [(neurons[i], (o,)) for o, i in mask.nonzero().tolist()], [
        (o,) for o in range(len(mask))
    ]


def pool_edges(neurons, mask):
    """Return the wires of a 2x2 pool, which are no synapses, and its outputs."""
    edges = [((c, y, x), (c, y // 2, x // 2)) for c, y, x in neurons]
    return edges, list(dict.fromkeys(b for _, b in edges))


EDGES = {"Conv2d": conv_edges, "Linear": linear_edges, "MaxPool2d": pool_edges}
