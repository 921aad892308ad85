"""The core's own partitioners."""

from __future__ import annotations

from collections.abc import Sequence

from dsx.plugin.types import Layer


def uniform(layers: Sequence[Layer], *, parts: int) -> tuple[int, ...]:
    """Parts of as many layers each; where that does not divide, counts differ by one."""
    return tuple(index * len(layers) // parts for index in range(parts + 1))


def parameters(layers: Sequence[Layer], *, parts: int) -> tuple[int, ...]:
    """Contiguous parts whose largest sum of parameters is as small as can be.

    Of all such cuts, the one whose first parts are as long as they may be. No part is without weights while at least
    ``parts`` layers have some; no part is without layers while there are at least as many of them.
    """
    weights = [layer.parameters for layer in layers]
    low, high = max([0, *weights, -(-sum(weights) // parts)]), sum(weights)
    while low < high:
        middle = (low + high) // 2
        if parts_under(middle, weights) <= parts:
            high = middle
        else:
            low = middle + 1
    return _filled(weights, parts=parts, limit=low)


def parts_under(limit: int, weights: Sequence[int]) -> int:
    """The fewest contiguous parts of which none weighs more than the limit, which no single weight exceeds."""
    count, total = 1, 0
    for weight in weights:
        if total + weight > limit:
            count, total = count + 1, 0
        total += weight
    return count


def _filled(weights: Sequence[int], *, parts: int, limit: int) -> tuple[int, ...]:
    """Borders that fill each part up to the limit, but leave enough layers for the parts that come after it."""
    heavy = [weight > 0 for weight in weights]
    counted = heavy if sum(heavy) >= parts else [True] * len(weights)
    left = sum(counted)  # layers from here on that a later part could live on
    borders, total, began = [0], 0, False
    for index, weight in enumerate(weights):
        later = parts - len(borders)
        short = counted[index] and left <= later
        if later and began and (total + weight > limit or short):
            borders.append(index)
            total = 0
        total += weight
        left -= counted[index]
        began = True
    return (*borders, *[len(weights)] * (parts + 1 - len(borders)))
