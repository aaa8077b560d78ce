"""Files that carry the SHA-256 of their own content, so that a reader notices when somebody has
changed them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from pydantic import ConfigDict, ValidationError

from regbench.files import adapter, json_object, read_file, reason, signed, without_digest

# The version rises when older files can no longer be read. Readers pass over fields that they do
# not know, and a field with a default may be missing, so neither needs a new version.
SCHEMA_VERSION: Final = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedFile:
    """A signed JSON file whose fields are those of the dataclass.

    Attributes:
        path: The path that it was read from.
        sha256: The digest of all other fields; empty until it is written.
        schema_version: The version of the fields.
    """

    path: Path = Path()
    sha256: str = ""
    schema_version: Literal[6] = SCHEMA_VERSION

    # Newer writers may have added fields.
    __pydantic_config__ = ConfigDict(strict=True)

    def text(self) -> str:
        """Return the file's content."""
        content = dataclasses.asdict(self)
        del content["path"], content["sha256"]
        return signed(content)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            ValueError: Saying what is wrong with it.
            OSError: If it cannot be read.
        """
        return cls.parse(path.read_bytes(), path)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Self:
        """Return what the content of the file at `path` holds.

        Raises:
            ValueError: Saying what is wrong with it.
        """
        # Before pydantic, which would only say which field a file of another version lacks.
        plain = json_object(content)
        if (version := plain.get("schema_version")) != SCHEMA_VERSION:
            raise ValueError(
                f"schema version {version!r:.40}, this regbench reads {SCHEMA_VERSION}"
            )
        try:
            found = cast("Self", adapter(cast("Any", cls)).validate_json(content))
        except ValidationError as error:
            raise ValueError(reason(error)) from error
        without_digest(plain)
        # It is frozen for its readers, but nobody has read it yet.
        object.__setattr__(found, "path", path)
        return found

    @classmethod
    def read_if_there(cls, path: Path, remedy: str) -> Self | None:
        """Read a file; None if it is not there. Refuse one that was changed, with the remedy."""
        try:
            return read_file(path, lambda content: cls.parse(content, path), remedy)
        except FileNotFoundError:
            return None
