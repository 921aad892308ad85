"""Which parameters are gathered together: a unit is a block of the model."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dsx_zero.config import ZeroConfig

CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def units_of(model: nn.Module, config: ZeroConfig) -> dict[str, str]:
    """Parameter name -> path of the module whose parameters it is gathered with.

    A unit is a declared leaf module, an element of a module list (a transformer block), or else the module that owns
    the parameter. An element larger than the prefetch budget is divided further.
    """
    units: dict[str, str] = {}
    for path, module in _heads(model, config):
        for name, _ in module.named_parameters(prefix=path):
            units.setdefault(name, path)
    for name, _ in model.named_parameters():
        units.setdefault(name, name.rpartition(".")[0])
    return units


def _heads(model: nn.Module, config: ZeroConfig) -> Iterator[tuple[str, nn.Module]]:
    """Modules gathered as one, the outermost first: of blocks that hold blocks, the outer one counts if it fits."""
    taken: list[str] = []
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if any(path.startswith(f"{head}.") for head in taken):
            continue
        if (
            is_leaf(path, module, config)
            or is_coarse(module, config)
            or (_is_block(path, modules) and _fits(module, config))
        ):
            taken.append(path)
            yield path, module


def _is_block(path: str, modules: dict[str, nn.Module]) -> bool:
    parent, _, _ = path.rpartition(".")
    return bool(path) and isinstance(modules.get(parent), CONTAINERS)


def _fits(module: nn.Module, config: ZeroConfig) -> bool:
    numel = sum(param.numel() for param in module.parameters())
    return 0 < numel <= max(1, min(config.prefetch_bucket_size or numel, config.max_live_parameters // 2))


def is_leaf(path: str, module: nn.Module, config: ZeroConfig) -> bool:
    """Whether the configuration declares this module to be gathered as one."""
    leaf, kind = config.leaf_module, type(module)
    if path in leaf.names or any(path.endswith(suffix) for suffix in leaf.name_suffixes):
        return bool(path)
    return kind.__name__ in leaf.classes or f"{kind.__module__}.{kind.__qualname__}" in leaf.classes


def is_coarse(module: nn.Module, config: ZeroConfig) -> bool:
    """Whether the module's parameters are so small on average that one gather for all is cheaper."""
    sizes = [param.numel() for param in module.parameters()]
    threshold = config.module_granularity_threshold
    return bool(threshold and len(sizes) > 1 and sum(sizes) / len(sizes) < threshold)
