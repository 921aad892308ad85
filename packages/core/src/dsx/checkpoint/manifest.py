"""The page of a checkpoint that says what is in it. It is written last: without it there is no checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsx.checkpoint import plain
from dsx.errors import CheckpointError

FORMAT = 1
"""Number of the format. A reader refuses a higher one."""

MANIFEST, STATE, CLIENT, INDEX = "manifest.json", "state.json", "client.json", "index.json"
"""Names of the files beside the tensors: this page, the parts' plain data, the client's, and where each chunk lies."""

CLIENT_PART = "client"
"""Under this name the tensors of the client's state are stored; no part may have it."""


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A stored tensor: its global shape and its dtype by torch's name, such as ``float32``."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A stored file, by which a torn one is found."""

    bytes: int
    crc32: int
    part: str = ""
    """The part whose tensors it holds; empty for the pages that every reader needs."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds, and who wrote it."""

    tag: str
    dsx: str
    torch: str
    saved_at: float
    """Seconds since 1970, UTC."""
    parts: Mapping[str, int]
    """Part -> version."""
    tensors: Mapping[str, TensorRecord]
    aliases: Mapping[str, str]
    """Second name -> name of the tensor."""
    client_keys: tuple[str, ...]
    files: Mapping[str, FileRecord]
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Whatever the writer wishes to say: plain data."""
    format: int = FORMAT

    def resolve(self, name: str) -> str:
        """The name under which a tensor's elements are stored."""
        return self.aliases.get(name, name)

    def names(self, part: str) -> list[str]:
        """Names and second names of one part's tensors."""
        return [name for name in (*self.tensors, *self.aliases) if name.startswith(f"{part}/") or name == part]

    def dumps(self) -> str:
        """As JSON, for people too."""
        page = {
            "format": self.format,
            "dsx": self.dsx,
            "torch": self.torch,
            "tag": self.tag,
            "saved_at": self.saved_at,
            "meta": json.loads(plain.dumps(dict(self.meta), where="meta")),
            "parts": dict(self.parts),
            "client_keys": list(self.client_keys),
            "files": {
                name: {"bytes": f.bytes, "crc32": f.crc32, **({"part": f.part} if f.part else {})}
                for name, f in self.files.items()
            },
            "tensors": {name: {"shape": list(t.shape), "dtype": t.dtype} for name, t in self.tensors.items()},
            "aliases": dict(self.aliases),
        }
        return json.dumps(page, indent=1, allow_nan=False) + "\n"

    @classmethod
    def loads(cls, text: str, *, where: str) -> Manifest:
        """The manifest in this text; a CheckpointError where it is torn or of a later format."""
        try:
            page = json.loads(text)
            if page["format"] > FORMAT:
                raise CheckpointError(
                    f"{where} is of checkpoint format {page['format']}, written by dsx {page['dsx']};"
                    f" this dsx reads up to {FORMAT}: install a newer dsx-core"
                )
            return cls(
                format=page["format"],
                dsx=page["dsx"],
                torch=page["torch"],
                tag=page["tag"],
                saved_at=page["saved_at"],
                meta=plain.loads(json.dumps(page["meta"]), where=where),
                parts=page["parts"],
                client_keys=tuple(page["client_keys"]),
                files={name: FileRecord(**record) for name, record in page["files"].items()},
                tensors={n: TensorRecord(tuple(t["shape"]), t["dtype"]) for n, t in page["tensors"].items()},
                aliases=page["aliases"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{where} is torn: {type(error).__name__}: {error}") from error
