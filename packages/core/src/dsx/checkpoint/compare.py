"""Whether a checkpoint is of this model: every difference by name, in one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsx.checkpoint.contents import Contents, dtype_of
from dsx.checkpoint.manifest import Manifest, TensorRecord
from dsx.checkpoint.tree import refs
from dsx.errors import CheckpointError, did_you_mean

_SHOWN = 30


def refuse_other_model(
    template: Contents, manifest: Manifest, stored: Mapping[str, Any], *, strict: bool, where: str
) -> None:
    """Compare what all ranks ask for with what the checkpoint holds; a CheckpointError lists all differences.

    stored: the parts' plain trees in the checkpoint. Without ``strict`` only shapes and kinds of number are compared.
    """
    names = [name for part in template.versions for name in manifest.names(part)]
    kept = {name: manifest.tensors[manifest.resolve(name)] for name in names}
    asked = template.tensors | {name: template.tensors[target] for name, target in template.aliases.items()}
    lines: list[str] = []
    if strict:
        gone = [part for part in template.versions if part not in manifest.parts]
        missing = sorted(name for name in asked if name not in kept and name.partition("/")[0] not in gone)
        unexpected = sorted(set(kept) - set(asked) - _taken_as_it_is(template, stored))
        lines += [f"part {part!r} is missing; the checkpoint has {', '.join(manifest.parts)}" for part in gone]
        lines += _listed("missing (in this model, not in the checkpoint)", missing, unexpected)
        lines += _listed("unexpected (in the checkpoint, not in this model)", unexpected, ())
    differing = [
        f"{name} is {_show(kept[name])} in the checkpoint, {_show(asked[name])} in this model"
        for name in sorted(asked.keys() & kept.keys())
        if not _fits(kept[name], asked[name])
    ]
    lines += _listed("differently shaped or typed", differing, ())
    if lines:
        advice = "Nothing was changed. Load it into the model that wrote it"
        loose = ", or load with strict=False to leave missing tensors as they are and skip unexpected ones"
        raise CheckpointError(f"{where} is of another model:\n  " + "\n  ".join(lines) + f"\n{advice}{loose}")


def _taken_as_it_is(template: Contents, stored: Mapping[str, Any]) -> set[str]:
    """Tensors of the checkpoint that some rank's template takes whatever they are: see ``tree.join``."""
    taken: set[str] = set()
    for part, tree in template.trees.items():
        if part in stored:
            _collect(tree, stored[part], taken)
    return taken


def _collect(template: Any, stored: Any, taken: set[str]) -> None:
    if isinstance(template, dict) and isinstance(stored, dict):
        for key in template.keys() & stored.keys():
            _collect(template[key], stored[key], taken)
    elif type(template) in (list, tuple) and type(template) is type(stored) and len(template) == len(stored):
        for one, other in zip(template, stored, strict=True):
            _collect(one, other, taken)
    else:
        taken.update(ref.name for ref in refs(stored))


def _fits(stored: TensorRecord, asked: TensorRecord) -> bool:
    if stored.shape != asked.shape:
        return False
    one, other = dtype_of(stored), dtype_of(asked)
    # Between formats of one kind a value converts; between kinds it would be another value.
    return one == other or (one.is_floating_point and other.is_floating_point)


def _show(record: TensorRecord) -> str:
    return f"{record.shape} {record.dtype}"


def _listed(title: str, items: Sequence[str], candidates: Sequence[str]) -> list[str]:
    if not items:
        return []
    # By last keys alone: a common path in front would make any two names look alike.
    near = [candidate.rpartition("/")[2] for candidate in candidates]
    shown = [f"{item}{did_you_mean(item.rpartition('/')[2], near)}" for item in items[:_SHOWN]]
    more = [f"and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return [f"{title}: " + "; ".join(shown + more)]
