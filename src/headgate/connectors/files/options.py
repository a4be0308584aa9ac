"""Options of the source and the sink of files."""

from __future__ import annotations

from pydantic import Field

from headgate.connectors.api import Options, identity


class FilesSourceOptions(Options):
    """Which files to read, and how."""

    path: str = identity(min_length=1, description="A file, or a glob; read in the order of the names.")
    follow: bool = Field(False, description="Wait for more lines, and for later files, instead of ending.")
    poll_s: float = Field(0.5, gt=0, allow_inf_nan=False, description="How often to look for more when following.")
    batch: int = Field(5000, ge=1, le=100_000, description="The most records in one batch.")
    batch_bytes: int = Field(8 << 20, ge=1, description="The most bytes in one batch, unless one line is longer.")
    max_line_bytes: int = Field(16 << 20, ge=1, description="A longer line becomes a dead letter.")


class FilesSinkOptions(Options):
    """Which file to write, and how."""

    path: str = identity(min_length=1, description="The file to append to; made if absent.")
    sync: bool = Field(True, description="Whether a write ends only when the disk has the data (fsync).")
