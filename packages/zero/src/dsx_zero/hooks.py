"""What the model itself tells the gatherer: a module begins, a unit ends, a parameter is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from dsx_zero.gather import Gatherer, Resident


class OnDemand(dict[str, nn.Parameter | None]):
    """A module's parameters, gathered when another module reads them, in a forward or where backward repeats one."""

    def __init__(
        self, entries: dict[str, nn.Parameter | None], residents: dict[str, Resident], gatherer: Gatherer
    ) -> None:
        super().__init__(entries)
        self.residents = residents
        self.gatherer = gatherer
        self.open = 0
        """Runs of the module that are open: then its parameters are whole."""

    def __getitem__(self, name: str) -> nn.Parameter | None:
        resident = self.residents.get(name)
        if resident is not None and not self.open and (self.gatherer.running or in_backward()):
            self.gatherer.lend(resident)
        return super().__getitem__(name)

    def __reduce__(self) -> tuple[type, tuple[dict[str, nn.Parameter | None]]]:
        return dict, (dict(self.items()),)


def in_backward() -> bool:
    """Whether autograd runs a backward in this thread."""
    return torch._C._current_graph_task_id() != -1


class ModuleHooks:
    """The hooks on one model, and how to take them off again."""

    def __init__(
        self, model: nn.Module, by_name: dict[str, Resident], units: dict[str, str], gatherer: Gatherer
    ) -> None:
        self.gatherer = gatherer
        self.handles: list[RemovableHandle] = []
        self.replaced: list[nn.Module] = []
        ends: dict[str, list[Resident]] = {}
        canonical = {id(param): name for name, param in model.named_parameters()}
        for path, module in model.named_modules():
            own: dict[str, Resident] = {}
            for name, param in module._parameters.items():
                resident = by_name.get(canonical.get(id(param), "")) if param is not None else None
                if resident is not None:
                    own[name] = resident
                    _add(ends, units[canonical[id(param)]], resident)
                    if canonical[id(param)] != (f"{path}.{name}" if path else name):
                        _add(ends, path, resident)
            if own:
                self._watch(module, own)
        modules = dict(model.named_modules())
        for path, residents in ends.items():
            self.handles.append(modules[path].register_forward_hook(self._ender(residents), always_call=True))

    def _watch(self, module: nn.Module, own: dict[str, Resident]) -> None:
        residents = list(dict.fromkeys(own.values()))
        entries = OnDemand(module._parameters, own, self.gatherer)
        held = {id(module._parameters[name]): resident for name, resident in own.items()}

        def begins(module: nn.Module, args: Any) -> None:
            entries.open += 1
            for resident in residents:
                resident.holds += 1
            for resident in residents:
                self.gatherer.use(resident)

        def ended(module: nn.Module, args: Any, output: Any) -> None:
            if not entries.open:  # another hook has failed before the module began
                return
            entries.open -= 1
            for resident in residents:
                resident.holds -= 1
            for leaf in tree_leaves(output):
                if id(leaf) in held:
                    self.gatherer.lend(held[id(leaf)])

        self.handles.append(module.register_forward_pre_hook(begins))
        self.handles.append(module.register_forward_hook(ended, always_call=True))
        module._parameters = entries
        self.replaced.append(module)

    def _ender(self, residents: list[Resident]) -> Any:
        def ends(module: nn.Module, args: Any, output: Any) -> None:
            for resident in residents:
                self.gatherer.used(resident)

        return ends

    def remove(self) -> None:
        """The model as it was."""
        for handle in self.handles:
            handle.remove()
        for module in self.replaced:
            module._parameters = dict(module._parameters.items())
        self.handles.clear()
        self.replaced.clear()


def _add(ends: dict[str, list[Resident]], path: str, resident: Resident) -> None:
    residents = ends.setdefault(path, [])
    if resident not in residents:
        residents.append(resident)
