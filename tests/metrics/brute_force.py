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
