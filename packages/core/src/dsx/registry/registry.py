"""Components by kind and name: unique within their kind, imported when asked for, unknown names answered with help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dsx.errors import PluginError, did_you_mean
from dsx.plugin.catalog import distribution_of, install
from dsx.plugin.kinds import KINDS
from dsx.plugin.manager import PluginManager, Tagged
from dsx.plugin.types import Component, Kernel, Kind, Score
from dsx.registry.kernels import KernelChoice
from dsx.registry.loading import load_object

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Registry:
    """All components and kernels that the plugins offer, each imported when it is first asked for."""

    def __init__(self, plugins: PluginManager, *, kernels: str | None = None) -> None:
        """kernels: as the environment variable DSX_KERNELS, which is read where it is None. Raises on a clash."""
        self.plugins = plugins
        self._components: dict[str, dict[str, Tagged[Component[Any]]]] = {}
        self._objects: dict[tuple[str, str], Any] = {}
        offered = plugins.components()
        self._add([Tagged(item.plugin, item.value) for item in offered if isinstance(item.value, Component)])
        self.kernels = KernelChoice(
            [Tagged(item.plugin, item.value) for item in offered if isinstance(item.value, Kernel)],
            who=plugins.who,
            forced=kernels,
        )

    def _add(self, offered: list[Tagged[Component[Any]]]) -> None:
        for item in offered:
            known = self._components.setdefault(item.value.kind.name, {})
            known |= {name.lower(): item for name in (item.value.name, *item.value.aliases)}

    def get(self, kind: Kind[T], name: str) -> T:
        """The component of this name or alias, in any case. Raises PluginError with the known names and the nearest."""
        item = self.component(kind, name)
        key = (kind.name, item.value.name)
        if key not in self._objects:
            what, who = f"{kind.name} {item.value.name!r}", self.plugins.who(item.plugin)
            made = load_object(item.value.load, what=what, provider=who.provider, block=who.block)
            if kind in KINDS and not callable(made):
                raise who.wrong(what, found=f"{type(made).__name__} {made!r:.60}", wanted="a class or function")
            self._objects[key] = made
        found: T = self._objects[key]
        return found

    def component(self, kind: Kind[Any], name: str) -> Tagged[Component[Any]]:
        """What `get` would load, with the plugin that offers it; nothing is imported."""
        known = self._components.get(kind.name, {})
        item = known.get(name.lower())
        if item is None:
            raise PluginError(self._unknown(kind, name, list(known)))
        return item

    def has(self, kind: Kind[Any], name: str) -> bool:
        """Whether a component of this name or alias is registered."""
        return name.lower() in self._components.get(kind.name, {})

    def names(self, kind: Kind[Any]) -> tuple[str, ...]:
        """Names of this kind as their plugins spell them, sorted, without aliases."""
        return tuple(sorted({item.value.name for item in self._components.get(kind.name, {}).values()}))

    def kernel(self, operation: str, *, like: Tensor | None = None) -> Callable[..., Any]:
        """The best variant of an operation here, for tensors of the device and dtype of ``like``."""
        return self.kernels.get(operation, like=like)

    def scores(self, operation: str) -> tuple[tuple[str, Score], ...]:
        """(variant, score) of an operation, the best first."""
        return self.kernels.scores(operation)

    def require(self, operation: str, variant: str) -> Callable[..., Any]:
        """This variant, now and whenever the operation is asked for; KernelError where it cannot run."""
        return self.kernels.require(operation, variant)

    def _unknown(self, kind: Kind[Any], name: str, known: list[str]) -> str:
        distribution = distribution_of(kind.name, name)
        names = ", ".join(self.names(kind)) or "none"
        text = f"unknown {kind.name} {name!r}{did_you_mean(name.lower(), known)}: wanted one of {names}"
        if distribution:
            return f"{text}\n    what to do: {kind.name} {name!r} needs {distribution}: {install(distribution)}"
        broken = [f"{info.provider} is broken and may offer it: {info.trouble}" for info in self.plugins.broken()]
        return "\n    ".join([text, *broken, "what to do: correct the name, or install a plugin that offers it"])
