"""All monitors of a run together. A monitor that fails is switched off; training goes on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dsx.optim.parameters import check_params
from dsx.plugin.kinds import MONITOR
from dsx.plugin.naming import REMEDY, Who
from dsx.registry.building import building, owner

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.plugin.roles import Monitor
    from dsx.registry.registry import Registry

SECTIONS: Mapping[str, str] = {
    "tensorboard": "tensorboard",
    "csv_monitor": "csv",
    "jsonl_monitor": "jsonl",
    "wandb": "wandb",
    "comet": "comet",
    "prometheus": "prometheus",
}
"""Configuration section -> the monitor that it enables."""


class MonitorSet:
    """Writes to each of several monitors, by name."""

    def __init__(self, monitors: Mapping[str, Monitor], *, owners: Mapping[str, Who | None] | None = None) -> None:
        """owners: the plugin behind each, where it is known; a monitor that fails is told of with it."""
        self._monitors = dict(monitors)
        self._owners = dict(owners or {})

    @property
    def names(self) -> tuple[str, ...]:
        """Monitors that are written to."""
        return tuple(self._monitors)

    def __bool__(self) -> bool:
        return bool(self._monitors)

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Write metrics of one step everywhere."""
        for name, monitor in list(self._monitors.items()):
            try:
                monitor.write(values, step=step)
            except Exception as error:  # noqa: BLE001 - metrics must never stop a training
                self._drop(name, "write", error)

    def close(self) -> None:
        """Close every monitor; afterwards there is none."""
        for name, monitor in list(self._monitors.items()):
            try:
                monitor.close()
            except Exception as error:  # noqa: BLE001 - metrics must never stop a training
                self._drop(name, "close", error)
        self._monitors.clear()

    def _drop(self, name: str, what: str, error: Exception) -> None:
        del self._monitors[name]
        who = self._owners.get(name)
        of, remedy = ("", "") if who is None else (f" of plugin {who.provider}", f"{REMEDY}{who.remedy}")
        warnings.warn(
            f"monitor {name!r}{of} failed to {what} and is switched off: {type(error).__name__}: {error}{remedy}",
            RuntimeWarning,
            stacklevel=3,
        )


def monitors_from(config: DsxConfig, *, registry: Registry, rank: int) -> MonitorSet:
    """The monitors that a configuration enables, on rank 0; none on other ranks.

    Raises a PluginError where a monitor's library is absent, before anything is trained.
    """
    if rank != 0:
        return MonitorSet({})
    monitors: dict[str, Any] = {}
    owners: dict[str, Who | None] = {}
    for name, settings in enabled(config):
        make: Any = registry.get(MONITOR, name)
        again = sum(known.partition("#")[0] == name for known in monitors)
        unique = f"{name}#{again + 1}" if again else name
        with building(registry, MONITOR, name):
            monitors[unique] = make(**settings)
        owners[unique] = owner(registry, MONITOR, name)
    return MonitorSet(monitors, owners=owners)


def enabled(config: DsxConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, keyword arguments) of each monitor that a section enables or the list ``monitors`` names."""
    for section, name in SECTIONS.items():
        settings = getattr(config, section).model_dump()
        if settings.pop("enabled"):
            yield name, settings
    for item in config.monitors:
        yield item.type, dict(item.params)


def check_monitors(config: DsxConfig, *, registry: Registry) -> None:
    """Refuse an unknown name or param in the list ``monitors``; on every rank, so that none waits for a failed one."""
    for index, item in enumerate(config.monitors):
        check_params(f"monitors[{index}]", item.type, registry.get(MONITOR, item.type), item.params)
