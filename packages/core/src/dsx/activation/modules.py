"""Modules whose every call is checkpointed. Names in the model stay as they are."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import nn

from dsx.activation.recompute import checkpoint, reentrant
from dsx.activation.settings import ActivationSettings, settings_from
from dsx.errors import ConfigError, did_you_mean
from dsx.partition.cut import cut, layer_of
from dsx.partition.partitioners import uniform
from dsx.plugin.types import Layer, ModelPass, Phase

if TYPE_CHECKING:
    from dsx.plugin.roles import Partitioner

Policy = Callable[[str, nn.Module], bool]
"""Says of each (name, module) whether it is checkpointed."""

Method = Callable[..., Any]
"""``method(function, *args, **kwargs)`` for ``function(*args, **kwargs)``, computed again in backward."""

_MARK = "_dsx_checkpointed"


def apply(
    model: nn.Module,
    *,
    names: Iterable[str] = (),
    classes: Iterable[type[nn.Module] | str] = (),
    policy: Policy | None = None,
    settings: ActivationSettings | None = None,
    method: Method | None = None,
    partitioner: Partitioner = uniform,
) -> tuple[str, ...]:
    """Checkpoint each module that is chosen by name, class or policy; gives their names.

    names: with wildcards, such as ``layers.*``. classes: types, or their names. A module inside a chosen one is left
    alone. The module's class becomes a subclass of itself, so the model's parts, names and state_dict do not change,
    and its hooks run in the recomputation too, as sharded parameters need. A choice that matches nothing is a
    ConfigError. method: in place of torch's; one with an argument ``settings`` is given them. partitioner: cuts the
    chosen modules into ``settings.at_most`` parts, of which the first module each is checkpointed.
    """
    chosen = settings or ActivationSettings()
    patterns, types = tuple(names), tuple(classes)
    found = [name for name, module in model.named_modules() if name and _matches(name, module, patterns, types, policy)]
    outer = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    if not outer:
        raise ConfigError(_nothing(model, patterns, types))
    taken = spread([layer_of(name, model.get_submodule(name)) for name in outer], chosen.at_most, by=partitioner)
    call = method or (reentrant if chosen.use_reentrant else checkpoint)
    made: dict[type[nn.Module], type[nn.Module]] = {}
    for name in taken:
        module = model.get_submodule(name)
        kind = original(module)
        if kind not in made:
            made[kind] = _subclass(kind, chosen, call)
        module.__class__ = made[kind]
    return taken


def remove(model: nn.Module) -> None:
    """Undo ``apply`` on a model and everything in it."""
    for module in model.modules():
        module.__class__ = original(module)


def original(module: nn.Module) -> type[nn.Module]:
    """The class that a module had before ``apply``."""
    kind = type(module)
    return kind.__mro__[1] if _MARK in kind.__dict__ else kind


def activation_pass(
    section: Any,
    *,
    names: Iterable[str] = (),
    classes: Iterable[type[nn.Module] | str] = (),
    policy: Policy | None = None,
    use_reentrant: bool = False,
) -> ModelPass:
    """A model pass that applies the configuration section ``activation_checkpointing`` to the chosen modules."""
    settings = settings_from(section, use_reentrant=use_reentrant)
    patterns, types = tuple(names), tuple(classes)

    def run(model: nn.Module, plan: object) -> nn.Module:
        apply(model, names=patterns, classes=types, policy=policy, settings=settings)
        return model

    return ModelPass("activation-checkpointing", Phase.REWRITE, run)


def spread(layers: Sequence[Layer], at_most: int | None, *, by: Partitioner = uniform) -> tuple[str, ...]:
    """Names of at most so many of the layers: the first of each part that the partitioner cuts."""
    if at_most is None or at_most >= len(layers):
        return tuple(layer.name for layer in layers)
    borders = cut(by, layers, parts=at_most)
    return tuple(layers[start].name for start, end in pairwise(borders) if start < end)


def _subclass(kind: type[nn.Module], settings: ActivationSettings, method: Method) -> type[nn.Module]:
    # Bound here, not found through a context variable, at which torch.compile would break its graph.
    bound = partial(method, settings=settings) if "settings" in signature(method).parameters else method

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Around the whole call, not forward alone: the module's own hooks are part of what is computed again.
        inner: Any = super(made, self)
        return bound(inner.__call__, *args, **kwargs)

    def reduce(self: nn.Module, protocol: object) -> Any:
        return _remake, (kind, settings, method), self.__getstate__()

    body = {
        "__call__": call,
        "__reduce_ex__": reduce,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        _MARK: True,
    }
    metaclass: Any = type(kind)
    made: type[nn.Module] = metaclass(kind.__name__, (kind,), body)
    return made


def _remake(kind: type[nn.Module], settings: ActivationSettings, method: Method) -> nn.Module:
    bare: nn.Module = object.__new__(_subclass(kind, settings, method))  # pickle fills it
    return bare


def _matches(
    name: str,
    module: nn.Module,
    patterns: tuple[str, ...],
    classes: tuple[type[nn.Module] | str, ...],
    policy: Policy | None,
) -> bool:
    kind = original(module)
    return (
        any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        or any(kind.__name__ == one if isinstance(one, str) else issubclass(kind, one) for one in classes)
        or (policy is not None and policy(name, module))
    )


def _nothing(model: nn.Module, patterns: tuple[str, ...], classes: tuple[type[nn.Module] | str, ...]) -> str:
    known = [name for name, _ in model.named_modules() if name]
    kinds = sorted({original(module).__name__ for module in model.modules()})
    asked = [*patterns, *(one if isinstance(one, str) else one.__name__ for one in classes)]
    near = next((text for one in asked if (text := did_you_mean(one, [*known, *kinds]))), "")
    what = ", ".join(repr(one) for one in asked) or "the policy"
    return f"activation checkpointing: {what} matches no module{near}. The model's modules are of: {', '.join(kinds)}"
